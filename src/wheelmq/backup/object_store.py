"""A target in an object store, through fsspec: S3, Google Cloud Storage, Azure, SFTP and others."""

from __future__ import annotations

import errno
from typing import Any, Final

from wheelmq.backup.target import check_taken
from wheelmq.store.ship_status import public_name, public_text
from wheelmq.system.failpoint import reach

S3_OPTIONS: Final[dict[str, Any]] = {
    "config_kwargs": {"connect_timeout": 5, "read_timeout": 20, "retries": {"max_attempts": 3, "mode": "standard"}}
}
"""An attempt that hangs ends within seconds, so that the next attempt can store the capture."""


class TargetUnusable(OSError):
    """No attempt can open the target. The text names the remedy."""


class ObjectStoreTarget:
    """Objects below a path of an fsspec file system. Its errors have no password."""

    def __init__(self, files: Any, root: str, url: str = "") -> None:
        """`url` is that of the user. It may have a password."""
        self._files = files
        self._root = root.rstrip("/")
        self._url = url or root

    @classmethod
    def open(cls, url: str, options: dict[str, Any]) -> ObjectStoreTarget:
        """Open the target at `url`. Raises TargetUnusable, and OSError if it cannot be reached now."""
        try:
            import fsspec
        except ImportError:
            raise TargetUnusable(
                errno.ENOPKG, "object stores need fsspec: `pip install 'wheelmq[ship]'`", public_name(url)
            ) from None
        protocol = url.partition("://")[0]
        more = {**S3_OPTIONS, **options} if protocol in ("s3", "s3a") else options
        try:
            files, root = fsspec.core.url_to_fs(url, skip_instance_cache=True, use_listings_cache=False, **more)
        except (ImportError, ValueError) as error:
            text = public_text(f"{error}. Install the package for {protocol}://", url)
            raise TargetUnusable(errno.EINVAL, text, public_name(url)) from None
        except TypeError as error:  # of an option that the file system does not have
            text = public_text(f"{error}. Check the options of --storage", url)
            raise TargetUnusable(errno.EINVAL, text, public_name(url)) from None
        except Exception as error:  # some file systems connect at once
            text = public_text(f"{type(error).__name__}: {error}", url)
            raise OSError(errno.EIO, text, public_name(url)) from None
        return cls(files, root, url)

    def names(self, folder: str) -> list[str]:
        path = f"{self._root}/{folder}" if folder else self._root
        try:
            self._files.invalidate_cache()
            found = self._files.find(path)
        except FileNotFoundError:
            return []
        except Exception as error:
            raise self._os_error(error, path) from None
        skipped = len(self._files._strip_protocol(self._root)) + 1
        return sorted(self._files._strip_protocol(name)[skipped:] for name in found)

    def read(self, name: str) -> bytes:
        path = f"{self._root}/{name}"
        try:
            found: bytes = self._files.cat_file(path)
        except FileNotFoundError:
            raise FileNotFoundError(errno.ENOENT, "the object does not exist", public_text(path, self._url)) from None
        except Exception as error:
            raise self._os_error(error, path) from None
        return found

    def write(self, name: str, content: bytes) -> None:
        path = f"{self._root}/{name}"
        try:
            self._create(path, content)
        except FileExistsError:
            check_taken(self.read(name), content, public_text(path, self._url))
        except Exception as error:
            if not (isinstance(error, OSError) and error.errno == errno.EINVAL):
                raise self._os_error(error, path) from None
            check_taken(
                self.read(name), content, public_text(path, self._url)
            )  # some servers do not say which condition failed
        reach("target.written")

    def _create(self, path: str, content: bytes) -> None:
        """Store a new object. Raises FileExistsError, and the errors of the file system."""
        try:
            self._files.pipe_file(path, content, mode="create")
        except (TypeError, NotImplementedError):  # the file system cannot create exclusively
            if self._files.exists(path):
                raise FileExistsError(path) from None
            self._files.pipe_file(path, content)

    def remove(self, name: str) -> None:
        path = f"{self._root}/{name}"
        try:
            self._files.rm_file(path)
        except FileNotFoundError:
            return
        except Exception as error:
            raise self._os_error(error, path) from None

    def settle(self) -> None:
        """Do nothing: an object that can be read is durable."""

    def remove_unfinished(self) -> None:
        """Do nothing: an object has its name only once it is whole."""

    def _os_error(self, error: Exception, path: str) -> OSError:
        """Return an error of a library for object stores as an OSError that names the object."""
        if isinstance(error, OSError) and error.filename:
            text, path = str(error.strerror), str(error.filename)
        else:
            text = f"{type(error).__name__}: {error}"
        code = error.errno if isinstance(error, OSError) and error.errno else errno.EIO
        return OSError(code, public_text(text, self._url), public_text(path, self._url))
