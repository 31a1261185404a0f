"""Code that Equinox generates for a class: JAX's registry holds it where Python cannot find it.

`flatten_with_keys` names the fields of a class, as `flatten` does, which the walk reads. One function of Equinox makes
both of them from the fields. So where their constants are equal, the one follows from the other and from that function,
which is guarded as if it had run.

Read for this: equinox 0.13.8, `_module/_flatten.py`.
"""

from __future__ import annotations

import sys
from types import FunctionType
from typing import TYPE_CHECKING, Final

from ejcache.fingerprint.coverage import LibraryCode

if TYPE_CHECKING:
    from collections.abc import Iterable
    from types import CodeType

__all__ = ["generator_of"]

_MODULE: Final = "equinox._module._flatten"
_GENERATOR: Final = "generate_flatten_functions"
_WITH_KEYS: Final = "<generated_flatten_with_keys_"
_WITHOUT: Final = "<generated_flatten_"


def generator_of(code: CodeType, walked: Iterable[CodeType]) -> LibraryCode | None:
    """The function of Equinox that has generated `code`; None if it is not known to follow from what was walked.

    Args:
        code: of the user, as far as its file tells, and not reached by the walk.
        walked: the code objects that the walk has read.
    """
    generate = vars(sys.modules[_MODULE]).get(_GENERATOR) if _MODULE in sys.modules else None
    if not code.co_filename.startswith(_WITH_KEYS) or not isinstance(generate, FunctionType):
        return None
    twin = _WITHOUT + code.co_filename.removeprefix(_WITH_KEYS)
    # The first constant is the text of documentation, which says the function's name.
    if any(each.co_filename == twin and each.co_consts[1:] == code.co_consts[1:] for each in walked):
        return LibraryCode(generate.__code__, generate.__globals__, None)
    return None
