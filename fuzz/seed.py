"""Makes seed corpora for the decoder and body targets out of the recorded flows: one seed for each shape of message.

Run from anywhere: python3 fuzz/seed.py. Writes fuzz/corpus/TARGET/*, which is not committed.
"""

import hashlib
import json
import pathlib

ROOT = pathlib.Path(__file__).resolve().parent
VECTORS = ROOT.parent / "crates/protocol/tests/vectors/vectors.jsonl"
SEED_BYTES_MAX = 2048


def content(frame):
    if "utf8" in frame:
        return frame["utf8"].encode()
    return bytes.fromhex(frame["hex"]) if "hex" in frame else None


def target(message, frames):
    if message["to"] == "broker":
        return "decode_to_broker"
    command = frames[2] if len(frames) > 2 else b""
    return "decode_to_client" if command in (b"0x05", b"0x08", b"0x09", b"0x11") else "decode_to_worker"


def main():
    seen = set()
    for line in VECTORS.read_text(encoding="utf-8").splitlines():
        for recording in json.loads(line)["recordings"]:
            for message in recording["messages"]:
                frames = [content(frame) for frame in message["frames"]]
                if any(frame is None or len(frame) > 255 for frame in frames):
                    continue
                where = target(message, frames)
                # Length in one byte, then the frame: see frames.rs.
                seed = b"".join(bytes([len(frame)]) + frame for frame in frames)
                body = frames[-1]
                keys = tuple(sorted(json.loads(body))) if body[:1] == b"{" and body[-1:] == b"}" else body[:4]
                status = [frame for frame in frames[3:] if len(frame) == 3 and frame.isdigit()]
                shape = (where, len(frames), frames[1:3][-1:], status, keys)
                if str(shape) in seen or len(seed) > SEED_BYTES_MAX:
                    continue
                seen.add(str(shape))
                for folder, data in ((where, seed), ("bodies", body)):
                    path = ROOT / "corpus" / folder / hashlib.sha1(data).hexdigest()[:16]
                    path.parent.mkdir(parents=True, exist_ok=True)
                    path.write_bytes(data)
    print(f"{len(seen)} shapes of messages")


if __name__ == "__main__":
    main()
