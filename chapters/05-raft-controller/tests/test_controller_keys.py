"""The roles of a node, and settings that contradict each other."""

import re

import pytest
from cases import case

from minibroker.controller.keys import process_roles
from minibroker.metadata.configs import NodeConfig
from minibroker.metadata.errors import InvalidConfig

VOTERS = "1@a:9092,2@b:9092,3@c:9092"
BOTH = {"broker", "controller"}


def test_the_roles_of_a_node_are_said_or_follow_from_the_voters() -> None:
    cases: list[tuple[dict[str, str], set[str]]] = [
        ({}, BOTH),
        ({"controller.quorum.voters": VOTERS, "node.id": "1"}, BOTH),
        ({"controller.quorum.voters": VOTERS, "broker.id": "1"}, BOTH),
        ({"controller.quorum.voters": VOTERS, "node.id": "4"}, {"broker"}),
        ({"controller.quorum.voters": VOTERS, "node.id": "1", "process.roles": "controller"}, {"controller"}),
        ({"controller.quorum.voters": VOTERS, "node.id": "1", "process.roles": "controller, broker"}, BOTH),
        ({"controller.quorum.voters": VOTERS, "node.id": "4", "process.roles": "broker"}, {"broker"}),
        ({"process.roles": "broker,controller"}, BOTH),
    ]
    for settings, roles in cases:
        with case(settings):
            assert process_roles(NodeConfig(settings)) == roles


def test_roles_voters_and_listeners_that_disagree_are_refused() -> None:
    cases: list[tuple[dict[str, str], str]] = [
        ({"process.roles": "broker"}, "process.roles=broker needs controller.quorum.voters"),
        ({"process.roles": "controller"}, "process.roles=controller needs controller.quorum.voters"),
        ({"controller.quorum.voters": "5@a:9092"}, "node.id is not set, and controller.quorum.voters names [5]"),
        ({"process.roles": "observer"}, "must be broker, controller, or both"),
        ({"process.roles": "broker,broker"}, "must be broker, controller, or both"),
        ({"process.roles": "broker", "node.id": "1", "controller.quorum.voters": VOTERS}, "leave 1 out of the voters"),
        (
            {"process.roles": "controller", "node.id": "1", "controller.quorum.voters": "2@b:1"},
            "add 1@HOST:PORT to the voters",
        ),
        ({"controller.quorum.voters": "1@a:9092,1@b:9092"}, "each id and each address once"),
        ({"controller.quorum.voters": "1@a:9092,2@a:9092"}, "each id and each address once"),
        ({"controller.quorum.voters": "1@a:0"}, "ports from 1 to 65535"),
        ({"controller.quorum.voters": "1@a:70000"}, "ports from 1 to 65535"),
        (
            {"node.id": "1", "controller.quorum.voters": "1@a:9093"},
            "at port 9093, but listeners=PLAINTEXT://127.0.0.1:9092",
        ),
        ({"broker.session.timeout.ms": "900"}, "less than twice broker.heartbeat.interval.ms=500"),
    ]
    for settings, complaint in cases:
        with case(settings), pytest.raises(InvalidConfig, match=re.escape(complaint)):
            NodeConfig(settings)


def test_a_voter_is_where_it_listens_or_where_it_says_so_and_others_listen_where_they_like() -> None:
    cases: list[dict[str, str]] = [
        {"listeners": "PLAINTEXT://:0"},
        {"listeners": "PLAINTEXT://:9093"},
        {"advertised.listeners": "PLAINTEXT://a:9093"},
        {"node.id": "7", "listeners": "PLAINTEXT://:1234"},
    ]
    for settings in cases:
        with case(settings):
            NodeConfig({"node.id": "1", "controller.quorum.voters": "1@a:9093", **settings})
