"""A drop-in for ejkernel's configuration store, and `install`, which puts it under an unmodified ejkernel.

    import ejcache
    ejcache.autotune.ejkernel.install()          # before `import ejkernel` or `import easydel`, if you can

After that, each executor of ejkernel chooses through our chain. All processes share the results, also through a bucket.
Measurements time execution, never tracing. Overrides and guesses are not stored as tuned. What ejkernel and EasyDeL
compile goes through the cache of this process. EasyDeL needs no change.
"""

from ejcache.autotune.ejkernel.cache import PersistentCache
from ejcache.autotune.ejkernel.install import NoCompileContext, install, installed_chains, uninstall

__all__ = ["NoCompileContext", "PersistentCache", "install", "installed_chains", "uninstall"]
