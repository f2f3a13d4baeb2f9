"""trouble · what an error of the API means: whether to ask again, how long to wait, what to tell

Each function takes the exception that one call raised: of the SDK, of the HTTP library below it, or
a ValueError of our own. Servers other than the API's own use other words and statuses for the same
thing; what is known of them stands here.

Importing this file does nothing.
"""

import json
import re

LONGEST_WAIT = 60  # seconds; a server that wants more is reported instead of waited for
TEMPORARY = (200, 408, 409, 429)  # worth another try, as is 500 and above; 200: an error inside a stream
TOO_LONG = ("too long|context.(limit|length|window|size)|(token|length) limit|"
            r"max(imum)?( \w+)? length|number of tokens")
NO_MODEL = "(invalid|unknown) model|model.{0,60} not (exist|found|supported)"  # proxies answer 400 for 404


def may_pass(error: Exception) -> bool:
    """Whether another attempt can help."""
    import anthropic
    import httpx2

    if isinstance(error.__cause__, (httpx2.UnsupportedProtocol, httpx2.LocalProtocolError)):
        return False  # a base URL or a key with a typing error in it
    broken = isinstance(error, (anthropic.APIConnectionError, httpx2.HTTPError, json.JSONDecodeError))
    status = getattr(error, "status_code", None) or 0
    return broken or status in TEMPORARY or status >= 500 and not too_long(error)


def retry_wait(error: Exception, retry: int) -> float:
    """Seconds to wait before the next attempt, as the server says or else doubling; `retry` counts from 0."""
    headers = getattr(getattr(error, "response", None), "headers", None) or {}
    try:
        return max(0.0, float(headers["retry-after"]))
    except (KeyError, ValueError):  # absent, or a date
        return 0.5 * 2**retry


def what_happened(error: Exception) -> str:
    """The error in a few words, from its status and the API's own message, on one line."""
    status = getattr(error, "status_code", None)
    body = getattr(error, "body", None)
    said = body if isinstance(body, dict) else {}
    detail = said.get("error") or said.get("detail") or said.get("message")
    text = detail.get("message") if isinstance(detail, dict) else detail
    if type(error) is ValueError:
        text = str(error)
    elif status is None or (status == 200 and not text):
        cause = error.__cause__ or error  # the SDK itself says no more than "Connection error."
        text = f"the connection failed ({type(cause).__name__}: {cause})"
    text = " ".join(str(text or f"the server answered HTTP {status}").split())[:300]
    return f"{text} (HTTP {status})" if status and str(status) not in text else text


def too_long(error: Exception) -> bool:
    """Whether the prompt was larger than the window. There is no error type for that, only words."""
    status = getattr(error, "status_code", None)
    if status in (400, 422, 500):
        return bool(re.search(TOO_LONG, what_happened(error), re.IGNORECASE))
    return status == 413


def explain(error: Exception) -> str:
    """What happened and what to do, in one line for a person."""
    status, what = getattr(error, "status_code", None), what_happened(error)
    if type(error) is ValueError:  # ours, or the SDK's about what it was given: it says all there is
        return what
    if (wait := retry_wait(error, 0)) > LONGEST_WAIT:
        return f"{what}: the server wants a wait of {wait:,.0f} s; ask again after that"
    if "ReadTimeout" in what:
        return f"{what}: ask again; API_TIMEOUT_MS says how long to wait for an answer"
    if too_long(error):
        return f"{what}: the conversation is too long; /clear starts afresh, /compact (s06) shortens it"
    advice = {
        401: "check ANTHROPIC_API_KEY in the environment or in .env",
        402: "check the account's billing", 403: "this key may not do that",
        404: "check the model (--model or MODEL_ID) and ANTHROPIC_BASE_URL (without /v1)",
        429: "too many requests; wait a little and ask again",
        None: "check the network and ANTHROPIC_BASE_URL, then ask again"}
    if status == 400 and re.search(NO_MODEL, what, re.IGNORECASE):
        status = 404
    refused = "the request was refused; the conversation is kept, /clear starts afresh"
    other = refused if 400 <= (status or 0) < 500 else "the service has trouble; ask again later"
    return f"{what}: {advice.get(status, other)}"
