"""Requests to the running app, every route of it, and a record of what its process asks of the network."""

import http.client

from tests.support.web.browser import Server

ROUTES = [
    ("GET", "/"),
    ("GET", "/live?id=1"),
    ("GET", "/experiments"),
    ("GET", "/no-such-page"),
    ("GET", "/pulse?experiment=1"),
    ("GET", "/counts?experiment=1"),
    ("GET", "/_stcore/health"),
    ("GET", "/_stcore/script-health-check"),
    ("GET", "/_stcore/host-config"),
    ("GET", "/_stcore/metrics"),
    ("GET", "/_stcore/stream"),
    ("PUT", "/_stcore/upload_file/a/b"),
    ("OPTIONS", "/_stcore/upload_file/a/b"),
    ("DELETE", "/_stcore/upload_file/a/b"),
    ("GET", "/_stcore/agent/openapi.json"),
    ("POST", "/_stcore/agent/interact"),
    ("GET", "/_stcore/bidi-components/a/b.js"),
    ("GET", "/media/a.png"),
    ("GET", "/component/a/b.js"),
    ("GET", "/static/index.html"),
    ("GET", "/app/static/a.js"),
    ("GET", "/auth/login"),
    ("GET", "/auth/logout"),
    ("GET", "/oauth2callback"),
]
WEBSOCKET = {
    "Connection": "Upgrade",
    "Upgrade": "websocket",
    "Sec-WebSocket-Version": "13",
    "Sec-WebSocket-Key": "dGhlIHNhbXBsZSBub25jZQ==",
}
STREAM = ("GET", "/_stcore/stream")
AUDIT = """
import ipaddress, os, sys

def outside(host):
    try:
        return not ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host not in ("localhost", None, "")

def listen(event, args):
    if event in ("socket.connect", "socket.sendto") and isinstance(args[1], tuple):
        host = args[1][0]
    elif event in ("socket.getaddrinfo", "socket.gethostbyname"):
        host = args[0]
    else:
        return
    if outside(host):
        with open(os.environ["CALLS_OUTSIDE"], "a") as log:
            log.write(f"{event} {host}\\n")

sys.addaudithook(listen)
"""
"""Records every connection and every look-up of a name beyond loopback that a Python process tries."""


def ask(
    server: Server, route: tuple[str, str] = ("GET", "/"), address: str = "127.0.0.1", **headers: str
) -> http.client.HTTPResponse:
    """Send a request; ``sec_fetch_site`` stands for the header Sec-Fetch-Site."""
    connection = http.client.HTTPConnection(address, server.port, timeout=30)
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    connection.putrequest(*route, skip_host="host" in named)
    for name, value in named.items():
        connection.putheader(name, value)
    connection.endheaders()
    return connection.getresponse()
