"""The commands for users and access lists, in order, at brokers that have authentication and authorization on.

mqadmin signs its requests with the access key in conf/tools.yml. Apache prints the passwords of users, and WheelMQ
prints none: so passwords are masked.
"""

from __future__ import annotations

from typing import Final

from compat.mqadmin.steps import CLUSTER, CONFIG, Step

USER: Final = "root"
SECRET: Final = "secret_of_root"
SETTINGS: Final = {
    **CONFIG,
    "authenticationEnabled": "true",
    "authorizationEnabled": "true",
    "initAuthenticationUser": f'{{"username":"{USER}","password":"{SECRET}"}}',
    "innerClientAuthenticationCredentials": f'{{"accessKey":"{USER}","secretKey":"{SECRET}"}}',
}
"""The settings of both brokers, by Apache's names."""
_PACKAGE: Final = "org.apache.rocketmq.auth"
APACHE_SETTINGS: Final = {
    **SETTINGS,
    "authenticationMetadataProvider": f"{_PACKAGE}.authentication.provider.LocalAuthenticationMetadataProvider",
    "authorizationMetadataProvider": f"{_PACKAGE}.authorization.provider.LocalAuthorizationMetadataProvider",
}
TOOLS_YML: Final = f"accessKey: {USER}\nsecretKey: {SECRET}\n"
"""conf/tools.yml of mqadmin."""
NO_PASSWORDS: Final = ((r"\bsecret_\w+|\bnull\b", "<password>"),)
ORDER: Final = ((r"\[([\w, ]+)\]", "[<actions>]"),)


REMEDY: Final = "the remark names the wrong value and the remedy"


def _users(name: str, command: str) -> Step:
    return Step(name, command, is_set=True, masks=NO_PASSWORDS)


USERS: Final = (
    _users("users at the start", "listUser -b {broker}"),
    Step("user created", "createUser -b {broker} -u bob -p secret_of_bob -t Normal"),
    Step("user created in a cluster", f"createUser -c {CLUSTER} -u carol -p secret_of_carol"),
    Step("super user created", "createUser -b {broker} -u alice -p secret_of_alice -t Super"),
    Step("user that exists", "createUser -b {broker} -u bob -p secret_other"),
    _users("user", "getUser -b {broker} -u bob"),
    _users("user in a cluster", f"getUser -c {CLUSTER} -u carol"),
    _users("user that does not exist", "getUser -b {broker} -u nobody"),
    _users("users", "listUser -b {broker}"),
    _users("users with a filter", "listUser -b {broker} -f car"),
    _users("users in a cluster", f"listUser -c {CLUSTER}"),
    Step("user disabled", "updateUser -b {broker} -u bob -s disable"),
    _users("disabled user", "getUser -b {broker} -u bob"),
    Step("password changed", "updateUser -b {broker} -u bob -p secret_new"),
    Step("user enabled", "updateUser -b {broker} -u bob -s enable"),
    Step("type changed", f"updateUser -c {CLUSTER} -u carol -t Super"),
    Step("user changed that does not exist", "updateUser -b {broker} -u nobody -p secret_of_nobody"),
    _users("users after the changes", "listUser -b {broker}"),
)
ACLS: Final = (
    Step("lists at the start", "listAcl -b {broker}"),
    Step("list created", "createAcl -b {broker} -s User:bob -r Topic:Orders,Group:G* -a Pub,Sub -d Allow"),
    Step(
        "list created with addresses",
        f"createAcl -c {CLUSTER} -s User:carol -r Topic:* -a Get -i 10.0.0.1,192.168.0.0/16 -d Deny",
    ),
    Step("list for no user", "createAcl -b {broker} -s User:nobody -r Topic:Orders -a Pub -d Allow"),
    Step(
        "list for a wrong resource",
        "createAcl -b {broker} -s User:bob -r Orders -a Pub -d Allow",
        why=REMEDY,
        ours=r"CODE: 16 +DESC: 'Orders' is no resource: write Topic:NAME",
    ),
    Step(
        "list for a wrong action",
        "createAcl -b {broker} -s User:bob -r Topic:Orders -a Fly -d Allow",
        why=REMEDY,
        ours=r"CODE: 16 +DESC: 'Fly' is no action: write All, Pub",
    ),
    Step(
        "list for a wrong address",
        "createAcl -b {broker} -s User:bob -r Topic:X -a Pub -i nowhere -d Allow",
        why=REMEDY,
        ours=r"CODE: 16 +DESC: 'nowhere' is neither an IP address",
    ),
    Step("list", "getAcl -b {broker} -s User:bob", is_set=True, masks=ORDER),
    Step("list in a cluster", f"getAcl -c {CLUSTER} -s User:carol", is_set=True, masks=ORDER),
    Step("list of a user without", "getAcl -b {broker} -s User:alice"),
    Step("lists", "listAcl -b {broker}", is_set=True, masks=ORDER),
    Step("lists with a filter", "listAcl -b {broker} -s carol", is_set=True, masks=ORDER),
    Step("lists of a resource", "listAcl -b {broker} -r Topic:Orders", is_set=True, masks=ORDER),
    Step("list changed", "updateAcl -b {broker} -s User:bob -r Topic:Orders -a Sub -d Deny"),
    Step("list after the change", "getAcl -b {broker} -s User:bob", is_set=True),
    Step("entry deleted", "deleteAcl -b {broker} -s User:bob -r Topic:Orders"),
    Step("list without the entry", "getAcl -b {broker} -s User:bob", is_set=True, masks=ORDER),
    Step("list deleted", "deleteAcl -b {broker} -s User:bob"),
    Step("list that is gone", "getAcl -b {broker} -s User:bob"),
)
REMOVAL: Final = (
    Step("user deleted", "deleteUser -b {broker} -u bob"),
    Step("user deleted in a cluster", f"deleteUser -c {CLUSTER} -u carol"),
    Step("user deleted that does not exist", "deleteUser -b {broker} -u nobody"),
    _users("users in the end", "listUser -b {broker}"),
    Step("lists in the end", "listAcl -b {broker}"),
)
ADMINISTRATION: Final = (
    Step("topic of a secured broker", f"updateTopic -c {CLUSTER} -t Secured -r 4 -w 4"),
    Step("setting of a secured broker", "updateBrokerConfig -b {broker} -k longPollingEnable -v true"),
)

STEPS: Final = USERS + ACLS + REMOVAL + ADMINISTRATION
