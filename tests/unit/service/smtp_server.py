"""A real SMTP server on the loopback, as much of RFC 5321 as smtplib speaks."""

from __future__ import annotations

import base64
import socketserver
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field


@dataclass
class Mailbox:
    """What came, and what is answered."""

    port: int = 0
    #: Recipients and content of each message.
    messages: list[tuple[list[str], bytes]] = field(default_factory=list)
    #: What the next messages are answered after their content; then 250.
    answers: list[str] = field(default_factory=list)
    #: User and password of each login.
    logins: list[tuple[str, str]] = field(default_factory=list)
    #: Recipients that are refused.
    refused: set[str] = field(default_factory=set)


@contextmanager
def smtp_server() -> Iterator[Mailbox]:
    box = Mailbox()

    class Handler(socketserver.StreamRequestHandler):
        def say(self, text: str) -> None:
            self.wfile.write(f"{text}\r\n".encode())

        def handle(self) -> None:
            self.say("220 loopback ESMTP")
            recipients: list[str] = []
            while line := self.rfile.readline(1000):
                verb, _, rest = line.decode().strip().partition(" ")
                match verb.upper():
                    case "EHLO":
                        self.say("250-loopback")
                        self.say("250 AUTH PLAIN")
                    case "AUTH":
                        _, user, password = base64.b64decode(rest.split(" ")[1]).decode().split("\0")
                        box.logins.append((user, password))
                        self.say("235 ok")
                    case "MAIL":
                        recipients = []
                        self.say("250 ok")
                    case "RCPT":
                        address = rest.partition("<")[2].partition(">")[0]
                        if address in box.refused:
                            self.say("550 no such user")
                        else:
                            recipients.append(address)
                            self.say("250 ok")
                    case "DATA":
                        self.say("354 go on")
                        content = b""
                        while (part := self.rfile.readline(100_000)) not in (b".\r\n", b""):
                            content += part
                        answer = box.answers.pop(0) if box.answers else "250 ok"
                        if answer.startswith("250"):
                            box.messages.append((recipients, content))
                        self.say(answer)
                    case "QUIT":
                        self.say("221 bye")
                        return
                    case _:
                        self.say("250 ok")

    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), Handler) as server:
        server.daemon_threads = True
        box.port = server.server_address[1]
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        yield box
        server.shutdown()
        thread.join()
