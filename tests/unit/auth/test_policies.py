"""Access lists: resources, entries and their order."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from wheelmq.auth.policies import (
    AccessList,
    AclEntry,
    Action,
    Decision,
    PolicyKind,
    Resource,
    ResourceKind,
    check_network,
    is_in,
)

ALLOW, DENY = Decision.ALLOW, Decision.DENY


def entry(resource: str, *actions: Action, decision: Decision = ALLOW, ips: tuple[str, ...] = ()) -> AclEntry:
    return AclEntry(Resource.parse(resource), frozenset(actions or (Action.ALL,)), decision, ips)


def decide(entries: list[AclEntry], resource: str, *actions: Action, address: str = "10.0.0.1") -> Decision | None:
    """Return the decision of entries, which must not depend on their order."""
    found = {
        AccessList(custom=order).decide(Resource.parse(resource), frozenset(actions or (Action.PUB,)), address)
        for order in (entries, entries[::-1])
    }
    assert len(found) == 1, "the decision depends on the order of the entries"
    return found.pop()


class TestResources:
    @pytest.mark.parametrize(
        ("text", "kind", "name"),
        [
            ("Topic:Orders", ResourceKind.TOPIC, "Orders"),
            ("topic:Orders", ResourceKind.TOPIC, "Orders"),
            ("Group:g*", ResourceKind.GROUP, "g*"),
            ("Cluster:*", ResourceKind.CLUSTER, "*"),
            ("*", ResourceKind.ANY, "*"),
        ],
    )
    def test_a_text_is_a_resource(self, text: str, kind: ResourceKind, name: str) -> None:
        assert Resource.parse(text) == (kind, name)

    @pytest.mark.parametrize("text", ["", "Orders", "Topic:", "Topic: ", "Any:x", "Queue:x", ":x", "**"])
    def test_other_texts_are_rejected_with_the_form(self, text: str) -> None:
        with pytest.raises(ValueError, match="write Topic:NAME"):
            Resource.parse(text)

    @pytest.mark.parametrize(
        ("pattern", "covered", "others"),
        [
            ("Topic:A", ["Topic:A"], ["Topic:AB", "Topic:a", "Group:A"]),
            ("Topic:A*", ["Topic:A", "Topic:AB"], ["Topic:B", "Group:A"]),
            ("Topic:*", ["Topic:A", "Topic:B"], ["Group:A"]),
            ("*", ["Topic:A", "Group:A", "Cluster:c"], []),
        ],
    )
    def test_a_pattern_covers_names(self, pattern: str, covered: list[str], others: list[str]) -> None:
        found = Resource.parse(pattern)
        assert all(found.covers(Resource.parse(one)) for one in covered)
        assert not any(found.covers(Resource.parse(one)) for one in others)

    @given(st.sampled_from([kind for kind in ResourceKind if kind is not ResourceKind.ANY]), st.text(min_size=1))
    def test_the_text_of_a_resource_gives_it_back(self, kind: ResourceKind, name: str) -> None:
        if name.strip() == name:
            assert Resource.parse(Resource(kind, name).text) == (kind, name)


class TestDecisions:
    def test_no_entry_is_no_decision(self) -> None:
        assert decide([], "Topic:A") is None
        assert decide([entry("Topic:B")], "Topic:A") is None
        assert decide([entry("Topic:A", Action.SUB)], "Topic:A", Action.PUB) is None

    def test_one_of_the_actions_is_enough(self) -> None:
        assert decide([entry("Topic:A", Action.GET)], "Topic:A", Action.SUB, Action.GET) is ALLOW

    def test_all_fits_each_action(self) -> None:
        assert all(decide([entry("Topic:A", Action.ALL)], "Topic:A", action) is ALLOW for action in Action)

    def test_a_name_decides_over_any_name(self) -> None:
        """Apache 5.3.3 allows or denies this by the order of the entries."""
        assert decide([entry("Topic:A", decision=DENY), entry("Topic:*")], "Topic:A") is DENY
        assert decide([entry("Topic:A"), entry("Topic:*", decision=DENY)], "Topic:A") is ALLOW

    def test_a_longer_prefix_decides_over_a_shorter_one(self) -> None:
        """In Apache 5.3.3 the shorter one decides."""
        assert decide([entry("Topic:Or*", decision=DENY), entry("Topic:Orders*")], "Topic:Orders1") is ALLOW
        assert decide([entry("Topic:Or*"), entry("Topic:Orders*", decision=DENY)], "Topic:Orders1") is DENY

    def test_a_kind_decides_over_all_kinds(self) -> None:
        assert decide([entry("*", decision=DENY), entry("Topic:*")], "Topic:A") is ALLOW

    def test_deny_decides_over_allow(self) -> None:
        entries = [entry("Topic:A", Action.PUB, decision=DENY), entry("Topic:A", Action.PUB)]
        assert decide(entries, "Topic:A", Action.PUB) is DENY

    def test_an_entry_for_other_addresses_does_not_count(self) -> None:
        entries = [entry("Topic:A", decision=DENY, ips=("10.1.0.0/16", "192.168.1.7")), entry("Topic:*")]
        assert decide(entries, "Topic:A", address="10.0.0.1") is ALLOW
        assert decide(entries, "Topic:A", address="10.1.2.3") is DENY
        assert decide(entries, "Topic:A", address="192.168.1.7") is DENY
        assert decide(entries, "Topic:A", address="2001:db8::1") is ALLOW

    def test_custom_policies_decide_over_default_ones(self) -> None:
        mine = AccessList(custom=[entry("Topic:*", decision=DENY)], default=[entry("Topic:A")])
        wanted = Resource.parse("Topic:A"), frozenset({Action.PUB}), "10.0.0.1"
        assert mine.decide(*wanted) is DENY
        mine.custom.clear()
        assert mine.decide(*wanted) is ALLOW


class TestChanges:
    def test_an_entry_replaces_the_one_with_its_resource_and_policy(self) -> None:
        mine = AccessList()
        mine.merge(PolicyKind.CUSTOM, [entry("Topic:A", Action.PUB), entry("Topic:B")])
        mine.merge(PolicyKind.CUSTOM, [entry("Topic:A", Action.SUB)])
        mine.merge(PolicyKind.DEFAULT, [entry("Topic:A", Action.GET)])
        assert mine.custom == [entry("Topic:A", Action.SUB), entry("Topic:B")]
        assert mine.default == [entry("Topic:A", Action.GET)]

    def test_the_entries_of_a_resource_are_removed_from_one_policy_or_both(self) -> None:
        resource = Resource.parse("Topic:A")
        mine = AccessList(custom=[entry("Topic:A"), entry("Topic:B")], default=[entry("Topic:A")])
        mine.remove(PolicyKind.DEFAULT, resource)
        assert (len(mine.custom), mine.default) == (2, [])
        mine.remove(None, resource)
        assert mine.custom == [entry("Topic:B")] and not mine.is_empty
        mine.remove(None, Resource.parse("Topic:B"))
        assert mine.is_empty


class TestAddresses:
    @pytest.mark.parametrize("text", ["10.0.0.1", "10.0.0.0/8", " 10.1.2.3/16", "::1", "2001:db8::/32"])
    def test_addresses_and_blocks_are_accepted(self, text: str) -> None:
        assert check_network(text) == text.strip()

    @pytest.mark.parametrize("text", ["", "10.0.0", "10.0.0.0/33", "host", "*"])
    def test_other_texts_are_rejected(self, text: str) -> None:
        with pytest.raises(ValueError, match="neither an IP address nor a block"):
            check_network(text)

    def test_an_ipv4_address_in_ipv6_form_is_the_ipv4_address(self) -> None:
        assert is_in("::ffff:10.1.2.3", ("10.1.0.0/16",))
