"""The key's text: what it says, and what it tells apart."""

from __future__ import annotations

from hypothesis import example, given
from hypothesis import strategies as st

from ejcache.keys.key import PGLE, CacheKey, parse_key
from ejcache.util.store_keys import check_key

BASE = {"computation": "c0", "flags": "f0", "jaxlib": "0.12.0", "platform_version": "p"}


def key(name="jit_f", platform="cpu", **components):
    return CacheKey(name=name, platform=platform, components={**BASE, **components})


def test_the_text_says_what_a_listing_shows():
    """Name, platform, variant and the two digests are read back from the text."""
    parts = parse_key(key().text)

    assert (parts.name, parts.platform, parts.variant) == ("jit_f", "cpu", "plain")
    assert (parts.logical, parts.environment) == (key().logical, key().environment)


def test_what_compiles_is_apart_from_what_is_compiled():
    """Another jaxlib is the same program in another environment; another flag is another program."""
    assert key(jaxlib="0.12.1").logical == key().logical
    assert key(jaxlib="0.12.1").environment != key().environment
    assert key(flags="f1").environment == key().environment
    assert key(flags="f1").logical != key().logical


def test_variants_share_the_logical_digest():
    """The plain and the profile-optimised executable of a program differ in the variant alone."""
    optimised = CacheKey(name="jit_f", platform="cpu", variant=PGLE, components=BASE)

    assert optimised.logical == key().logical
    assert optimised.text == key().text.replace("-plain-", "-pgle-")


def test_names_that_look_alike_stay_apart():
    """Characters that the text cannot carry are replaced there, not in the digest."""
    assert key(name="jit_<f>").text != key(name="jit_[f]").text
    assert key(name="x" * 500).text != key(name="x" * 501).text


def test_component_boundaries_count():
    """Moving a character from one component to the next is another key."""
    assert key(a="bc", ab="c").text != key(a="b", ab="cc").text


@given(name=st.text(max_size=300), platform=st.text(max_size=20), value=st.text(max_size=20))
@example(name="x" * 300, platform="cpu", value="")
def test_every_key_can_be_stored_and_parsed(name, platform, value):
    """Whatever JAX calls a module or a platform, stores and listings can carry the key."""
    made = key(
        name=name.encode("utf-8", "replace").decode(), platform=platform.encode("utf-8", "replace").decode(), v=value
    )

    assert check_key(made.text) == made.text
    assert parse_key(made.text) is not None
    assert len(made.text) < 200


def test_a_callers_own_key_is_not_parsed():
    """Only the text of a `CacheKey` is."""
    assert parse_key("my key") is None
