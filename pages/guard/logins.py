"""Visitors who log in with the provider configured for ``st.login`` (OpenID Connect).

Streamlit checks its login cookie in functions of its own that it may rename in any version. They are imported
only where secrets.toml configures a login: without one, the dashboard does not depend on them.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import streamlit as st
from starlette.requests import HTTPConnection
from starlette.responses import PlainTextResponse, RedirectResponse, Response

ROUTES = ("/auth/login", "/auth/logout", "/oauth2callback")
"""Streamlit's routes of a login, which visitors need before they are logged in."""


@dataclass(frozen=True)
class Logins:
    """The users who may log in.

    Attributes:
        provider: its name in the section ``auth`` of secrets.toml.
        users: their e-mail addresses in lower case; ``@example.org`` admits every address that ends with it.
    """

    provider: str
    users: tuple[str, ...]

    @classmethod
    def configured(cls) -> Logins | None:
        """Read secrets.toml; None if it configures no login, or one that cannot be used, which is logged."""
        auth: Mapping[str, Any] = st.secrets.get("auth", {}) if st.secrets.load_if_toml_exists() else {}
        if not auth:
            return None
        users = st.secrets.get("fedlens", {}).get("users") or ()
        problem = ""
        if isinstance(users, str) or not users:
            problem = 'nobody may use it; add [fedlens] users = ["you@example.org"]'
        elif not _is_authlib_installed():
            problem = 'Authlib is not installed; run pip install "streamlit[auth]"'
        if problem:
            logging.getLogger(__name__).warning("secrets.toml configures a login, but %s", problem)
            return None
        providers = [name for name, section in auth.items() if isinstance(section, Mapping)]
        provider = "default" if auth.get("client_id") else providers[0]
        return cls(provider, tuple(str(user).lower() for user in users))

    def answer(self, request: HTTPConnection, base: str) -> Response | None:
        """Return the answer to a visitor who has to log in or may not enter; None for one who may.

        Args:
            base: the path below which the app is served.
        """
        if request.scope["path"].removeprefix(base) in ROUTES:
            return None
        user = _logged_in_user(request)
        if user is None:
            wants_page = "text/html" in request.headers.get("accept", "")
            if request.scope["type"] == "http" and wants_page:
                return RedirectResponse(f"{base}{ROUTES[0]}?provider={_signed(self.provider)}", 302)
            return PlainTextResponse("Log in first.", 403)
        email = str(user.get("email") or "").lower()
        listed = any(email == u or (u.startswith("@") and email.endswith(u)) for u in self.users)
        # a provider that does not verify addresses leaves the field out; False means that it refuses to vouch
        if listed and email and user.get("email_verified") is not False:
            return None
        return PlainTextResponse(f"{email or 'This account'} may not use this FedLens.", 403)


def _is_authlib_installed() -> bool:
    from streamlit.auth_util import is_authlib_installed

    return is_authlib_installed()


def _signed(provider: str) -> str:
    """Return a provider's name as the token that Streamlit's login route expects."""
    from streamlit.auth_util import encode_provider_token

    return encode_provider_token(provider)


def _logged_in_user(request: HTTPConnection) -> dict[str, Any] | None:
    """Return the provider's claims about a visitor, from the cookie that Streamlit has signed."""
    from streamlit.web.server.starlette.starlette_server_config import USER_COOKIE_NAME
    from streamlit.web.server.starlette.starlette_websocket import _get_signed_cookie_with_chunks

    signed = _get_signed_cookie_with_chunks(request.cookies, USER_COOKIE_NAME)
    user = json.loads(signed) if signed is not None else None
    return user if isinstance(user, dict) and user.get("is_logged_in") is True else None
