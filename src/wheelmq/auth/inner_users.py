"""Users that no file of users has: those of WheelMQ's own processes.

- The pipeline's user may take the lease and read metrics. Its access key is a file in the config folder of the store,
  which only the owner of the broker can read. So a pipeline of the same owner needs no other password.
- The inner user is a super user. `wheelmq up` creates it for the processes that it starts, and passes its access key
  through their environment. The setting `inner_client_authentication_credentials` names another one.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

from wheelmq.auth.credentials_file import BadCredentials, read_credentials, write_credentials
from wheelmq.auth.needs import PIPELINE
from wheelmq.auth.policies import AccessList, AclEntry, Action, Decision, Resource, ResourceKind
from wheelmq.auth.users import User, UserKind, Users
from wheelmq.formats.wire.signature import AccessKey
from wheelmq.system.disk import Disk
from wheelmq.system.secure_random import secure_token

PIPELINE_USER: Final = "wheelmq-pipeline"
PIPELINE_KEY_NAME: Final = "pipelineKey.json"
"""Name of the file in the config folder of the store."""
UP_USER: Final = "wheelmq-up"


def pipeline_key(disk: Disk, config: Path) -> AccessKey:
    """Return the access key of the pipeline. Creates its file if it does not exist. Raises BadCredentials, OSError."""
    path = config / PIPELINE_KEY_NAME
    if disk.read(path) is None:
        write_credentials(disk, path, AccessKey(PIPELINE_USER, secure_token()))
    try:
        return read_credentials(disk, path)
    except BadCredentials as problem:
        raise BadCredentials(f"{problem}. Or remove it, and the start creates another one") from None


def add_pipeline_user(users: Users, key: AccessKey, cluster: str) -> None:
    """Let the key of the pipeline take the lease and read metrics, and nothing else."""
    rights = AccessList(
        custom=[
            _allow(ResourceKind.CLUSTER, PIPELINE, Action.UPDATE),
            _allow(ResourceKind.CLUSTER, cluster, Action.GET),
        ]
    )
    users.add_built_in(User(key.name, key.secret), rights)


def add_inner_user(users: Users, key: AccessKey) -> None:
    """Let a process of WheelMQ itself do everything."""
    users.add_built_in(User(key.name, key.secret, UserKind.SUPER))


def new_inner_key() -> AccessKey:
    """Return the access key of the processes of one `wheelmq up`."""
    return AccessKey(UP_USER, secure_token())


def _allow(kind: ResourceKind, name: str, action: Action) -> AclEntry:
    return AclEntry(Resource(kind, name), frozenset({action}), Decision.ALLOW)
