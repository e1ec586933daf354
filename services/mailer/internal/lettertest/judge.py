"""Parses every .eml file of a folder strictly and prints what it found as JSON lines.

An outside judge: Python's email package with every defect an error. It shares
no code with the mailer.
"""
import email
import email.policy
import json
import pathlib
import sys

POLICY = email.policy.SMTP.clone(raise_on_defect=True)


def judge(path):
    raw = path.read_bytes()
    if b"\r" in raw.replace(b"\r\n", b"") or b"\n" in raw.replace(b"\r\n", b""):
        raise ValueError("a line does not end with CRLF")
    if max(len(line) for line in raw.split(b"\r\n")) > 998:
        raise ValueError("a line is over 998 octets")
    message = email.message_from_bytes(raw, policy=POLICY)
    for name, value in message.items():
        if getattr(value, "defects", ()):
            raise ValueError(f"{name}: {value.defects}")
    (sender,) = message["From"].addresses
    to, *others = message["To"].addresses
    ordered = message["X-Pillarbox-Order"] is not None
    parts = list(message.iter_parts()) if message.is_multipart() else [message]
    kinds = [p.get_content_type() for p in parts]
    if kinds != ["text/plain", "text/html"] and (ordered or len(kinds) > 1):
        raise ValueError("parts are not text and HTML")
    if message.is_multipart() and message.get_content_type() != "multipart/alternative":
        raise ValueError("not multipart/alternative")
    bodies = {p.get_content_type(): p.get_content() for p in parts}
    for part in parts:
        if part["Content-Transfer-Encoding"] != "quoted-printable" or part.defects:
            raise ValueError("part is not clean quoted-printable")
    return {
        "file": path.name,
        "headers": sorted(name.lower() for name in message.keys()),
        "from": sender.addr_spec,
        "to": to.addr_spec,
        "to_name": to.display_name,
        "others": [a.addr_spec for a in others],
        "subject": str(message["Subject"]),
        "message_id": str(message["Message-ID"]),
        "date": message["Date"].datetime.isoformat(),
        "event": str(message["X-Pillarbox-Event"]),
        "order": str(message["X-Pillarbox-Order"]) if ordered else "",
        "version": int(message["X-Pillarbox-Version"]) if ordered else 0,
        "auto_submitted": str(message["Auto-Submitted"]),
        "text": bodies.get("text/plain", ""),
        "html": bodies.get("text/html", ""),
    }


for path in sorted(pathlib.Path(sys.argv[1]).glob("*.eml")):
    try:
        found = judge(path)
    except Exception as err:
        found = {"file": path.name, "error": f"{type(err).__name__}: {err}"}
    print(json.dumps(found))
