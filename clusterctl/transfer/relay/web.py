"""Requests to web servers outside the cluster. Standard library only.

The argument of `main` is {"ca": PEM, "proxy": VARIABLES, "url": URL, "headers": {...}}. It sends
one request, follows redirects, and prints {"status", "headers", "body" in base64} or {"failed":
TEXT}.
"""

import base64
import json
import os
import ssl
import urllib.error
import urllib.request
from http.client import HTTPException
from typing import Any, Dict, Optional
from urllib.parse import urlsplit

TIMEOUT = 30.0  # Seconds without a byte

MOST = 10 << 20  # Bytes of the answer to a single request

# Errors of a request. ValueError: a redirect to what is no address
NETWORK = (OSError, HTTPException, ValueError)


class Redirects(urllib.request.HTTPRedirectHandler):
    """Follows redirects, without credentials if the target is a different server."""

    def redirect_request(self, req, fp, code, msg, headers, newurl):  # type: ignore[no-untyped-def]
        scheme = urlsplit(newurl).scheme
        if scheme not in ("http", "https"):  # urllib would follow one to ftp
            raise urllib.error.URLError(f"it redirects to {scheme}")
        # 308 is 307 for a GET, and unknown to urllib before Python 3.11.
        new = super().redirect_request(req, fp, 307 if code == 308 else code, msg, headers, newurl)
        if new is not None and urlsplit(newurl)[:2] != urlsplit(req.full_url)[:2]:
            new.headers.pop("Authorization", None)
            new.headers.pop("Cookie", None)
        return new

    def http_error_302(self, req, fp, code, msg, headers):  # type: ignore[no-untyped-def]
        fp.close()  # urllib would read the whole body, which may never end
        return super().http_error_302(req, fp, code, msg, headers)

    http_error_301 = http_error_303 = http_error_307 = http_error_308 = http_error_302


def opener(ca: str, proxy: Dict[str, str]) -> urllib.request.OpenerDirector:
    """Return what opens URLs: it trusts `ca` (PEM, may be empty) besides this host's CAs, and uses
    `proxy`, whose variables replace this host's."""
    trust = ssl.create_default_context()
    if ca:
        trust.load_verify_locations(cadata=ca)
    os.environ.update(proxy)
    # urllib knows no ALL_PROXY, which curl and the controller's HTTP client use.
    proxies = urllib.request.getproxies()
    if "all" in proxies:
        proxies = {"http": proxies["all"], "https": proxies["all"], **proxies}
    return urllib.request.build_opener(
        urllib.request.ProxyHandler(proxies), urllib.request.HTTPSHandler(context=trust), Redirects
    )


def failure(url: str, error: Exception) -> str:
    """Return in a few words why a request failed."""
    reason = str(getattr(error, "reason", None) or error) or type(error).__name__
    return f"{urlsplit(url).netloc} cannot be reached: {reason}"


def main(argument: Optional[Dict[str, Any]]) -> None:
    """Send the request of `argument`: see the module's docstring."""
    if not argument:
        return
    url = argument["url"]
    try:
        through = opener(argument["ca"], argument["proxy"])
        request = urllib.request.Request(url, headers=argument["headers"])  # noqa: S310
        try:
            answer: Any = through.open(request, timeout=TIMEOUT)
        except urllib.error.HTTPError as error:
            if 300 <= error.code < 400:
                raise urllib.error.URLError("its redirect leads nowhere") from error
            answer = error
        with answer:
            body = answer.read(MOST + 1)
    except NETWORK as error:
        print(json.dumps({"failed": failure(url, error)}))
        return
    if answer.status == 200 and len(body) > MOST:
        text = f"{urlsplit(url).netloc} sent more than {MOST >> 20} MiB at once"
        print(json.dumps({"failed": text}))
        return
    headers = {name.lower(): value for name, value in answer.headers.items()}
    sent = base64.b64encode(body[:MOST]).decode()
    print(json.dumps({"status": answer.status, "headers": headers, "body": sent}))
