"""Names that the server answers to, and origins that may call it."""

from __future__ import annotations

from pages.guard.guard import HostNames, parse_host

CONFIGURED = HostNames(("lens.example.org", "*.uni.example"), frozenset({"https://proxy.example"}))


ANSWERED = [
    "localhost",
    "localhost:8501",
    "LOCALHOST.:8501",
    "127.0.0.1:8501",
    "127.0.0.2",
    "[::1]:8501",
    "[::1]",
    "lens.example.org",
    "lens.example.org:443",
    "a.uni.example",
]
REFUSED = [
    "",
    "evil.example",
    "localhost.evil.example",
    "127.0.0.1.evil.example",
    "10.0.0.1:8501",
    "0.0.0.0",
    "evil.example@localhost",
    "localhost@evil.example",
    "localhost/evil",
    "localhost:x",
    "localhost:99999",
    "localhost evil",
    "uni.example",
    "notlens.example.org",
    "[::2]",
    "::1",
    "[::1",
    "localhost\tx",
    "2130706433",
    "a.uni.example.evil",
]


def test_loopback_and_configured_names_are_answered_and_no_others() -> None:
    assert [host for host in ANSWERED if not CONFIGURED.answers_to(host)] == []
    assert [host for host in REFUSED if CONFIGURED.answers_to(host)] == []


def test_a_star_answers_to_every_name_but_not_to_garbage() -> None:
    assert HostNames(("*",)).answers_to("evil.example")
    assert not HostNames(("*",)).answers_to("a@b")


OWN_PAGES = [
    ("http://localhost:8501", "localhost:8501"),
    ("http://LOCALHOST:8501", "localhost:8501"),
    ("http://[::1]:8501", "[::1]:8501"),
    ("https://lens.example.org", "lens.example.org"),
    ("https://lens.example.org", "lens.example.org:443"),
    ("http://lens.example.org:80", "lens.example.org"),
    ("https://proxy.example", "127.0.0.1:8501"),
]
FOREIGN_PAGES = [
    ("http://localhost:8888", "localhost:8501"),  # somebody's notebook on the same machine
    ("http://127.0.0.1:8501", "localhost:8501"),
    ("https://localhost", "localhost:8501"),
    ("http://evil.example", "localhost:8501"),
    ("http://localhost:8501.evil.example", "localhost:8501"),
    ("http://localhost:8501/", "localhost:8501"),
    ("null", "localhost:8501"),
    ("", "localhost:8501"),
    ("file://", "localhost:8501"),
    ("chrome-extension://localhost:8501", "localhost:8501"),
    ("https://proxy.example:444", "127.0.0.1:8501"),
]


def test_pages_of_the_server_itself_and_of_configured_origins_may_call_it_and_no_others() -> None:
    assert [pair for pair in OWN_PAGES if not CONFIGURED.admits_origin(*pair)] == []
    assert [pair for pair in FOREIGN_PAGES if CONFIGURED.admits_origin(*pair)] == []


def test_a_host_is_parsed_only_where_it_is_plain() -> None:
    assert parse_host("[::1]:8501") == ("::1", 8501)
    assert parse_host("Lens.example.") == ("lens.example", None)
    assert parse_host("user@lens.example") is None
