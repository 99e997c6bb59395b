"""The job of another team: it uses a secret, leaves files where others might look, and runs until it is cancelled."""

import base64
import json
import os
import pathlib
import signal
import sys
import tempfile
import urllib.parse

secret = os.environ["HF_TOKEN"]
private = os.environ["PRIVATE"]
for folder in (".", os.environ["REMORA_OUTPUTS_DIR"], tempfile.gettempdir(), "/tmp", "/dev/shm"):
    try:
        pathlib.Path(folder, "canary-of-victim").write_text(private)
    except OSError as error:
        print(folder, error)
# All of this is a mistake, and none of it reaches the log.
print("The token is", secret)
print("In JSON", json.dumps({"token": secret}), "and in a URL", urllib.parse.quote(secret, safe=""))
print("In Base64", base64.b64encode(secret.encode()).decode())
print("In an error", file=sys.stderr)
for place in range(0, len(secret), 5):
    print(secret[place : place + 5], end="", flush=True)
print()
print("READY", flush=True)
signal.pause()
