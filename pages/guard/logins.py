"""Visitors who log in with the provider configured for ``st.login`` (OpenID Connect)."""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from starlette.requests import HTTPConnection
from starlette.responses import PlainTextResponse, RedirectResponse, Response
from streamlit.auth_util import encode_provider_token, get_secrets_auth_section, is_authlib_installed
from streamlit.runtime.secrets import secrets_singleton
from streamlit.web.server.starlette.starlette_server_config import USER_COOKIE_NAME
from streamlit.web.server.starlette.starlette_websocket import _get_signed_cookie_with_chunks

ROUTES = ("/auth/login", "/auth/logout", "/oauth2callback")
"""Streamlit's own routes of a login, which a visitor needs before it is known."""


@dataclass(frozen=True)
class Logins:
    """The users who may log in.

    Attributes:
        provider: of the section ``auth`` of secrets.toml.
        users: their e-mail addresses in lower case; ``@example.org`` stands for all that end so.
    """

    provider: str
    users: tuple[str, ...]

    @classmethod
    def configured(cls) -> Logins | None:
        """Read secrets.toml; None where it configures no login that somebody could use."""
        auth: Mapping[str, Any] = get_secrets_auth_section()
        if not auth:
            return None
        users = (secrets_singleton.get("fedlens") or {}).get("users") or ()
        missing = ""
        if isinstance(users, str) or not users:
            missing = 'nobody may use it; add [fedlens] users = ["you@example.org"]'
        elif not is_authlib_installed():
            missing = 'Authlib is not installed; run pip install "streamlit[auth]"'
        if missing:
            logging.getLogger(__name__).warning("secrets.toml configures a login, but %s", missing)
            return None
        named = [name for name, section in auth.items() if isinstance(section, Mapping)]
        return cls("default" if auth.get("client_id") else named[0], tuple(str(u).lower() for u in users))

    def answer(self, request: HTTPConnection, base: str) -> Response | None:
        """Return the answer to a visitor who has to log in or may not; None for one who may pass.

        Args:
            base: the path below which everything is served.
        """
        if request.scope["path"].removeprefix(base) in ROUTES:
            return None
        user = _logged_in(request)
        if user is None:
            wants_page = "text/html" in request.headers.get("accept", "")
            if request.scope["type"] == "http" and wants_page:
                login = f"{base}{ROUTES[0]}?provider={encode_provider_token(self.provider)}"
                return RedirectResponse(login, 302)
            return PlainTextResponse("Log in first.", 403)
        email = str(user.get("email") or "").lower()
        named = any(email == u or (u.startswith("@") and email.endswith(u)) for u in self.users)
        if named and email and user.get("email_verified") is not False:
            return None
        return PlainTextResponse(f"{email or 'This account'} may not use this FedLens.", 403)


def _logged_in(request: HTTPConnection) -> dict[str, Any] | None:
    """Return what the provider said about a visitor, from the cookie that Streamlit has signed."""
    signed = _get_signed_cookie_with_chunks(request.cookies, USER_COOKIE_NAME)
    if signed is None:
        return None
    user = json.loads(signed)
    return user if isinstance(user, dict) and user.get("is_logged_in") is True else None
