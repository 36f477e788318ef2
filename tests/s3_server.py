"""An S3 server on this machine: moto's, a process of its own, with the bucket `copies`."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from unittest import mock

import fsspec

from wheelmq.cli.ports import free_port

KEYS = {"AWS_ACCESS_KEY_ID": "test", "AWS_SECRET_ACCESS_KEY": "test", "AWS_DEFAULT_REGION": "us-east-1"}


@contextmanager
def s3_server() -> Iterator[str]:
    """Run the server, and put its keys into the environment. Yields its address."""
    port = free_port()
    command = [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)]
    url = f"http://127.0.0.1:{port}"
    with (
        subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True) as server,
        mock.patch.dict(os.environ, KEYS),
    ):
        assert server.stderr is not None
        reader = threading.Thread(target=server.stderr.read, daemon=True)  # a line for each request
        try:
            if not any("Running on" in line for line in server.stderr):  # it prints its address when it listens
                raise RuntimeError(f"the S3 server ended with {server.wait()}")
            reader.start()
            fsspec.filesystem("s3", endpoint_url=url).mkdir("copies")
            yield url
        finally:
            server.terminate()
            server.wait()
