"""One federation spec gives the same federation to the server, the client and the command line."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TypeVar

import pytest
from pydantic import BaseModel

from puf_client.options import RunOptions, UnlearnOptions
from puf_common.config.parser import Parser
from puf_common.config.settings import add_settings, resolve
from puf_lab.federations.state_directories import initial_model
from puf_lab.spec.command_line import client_flags, data_flags, server_flags
from puf_lab.spec.federation import DISTILLER, DataSpec, FederationSpec, ModelSpec
from puf_server.core.config import FederationConfig, Forgetting, Recipe

PAIRS = ((1, 1), (1, 2), (2, 1))
M = TypeVar("M", bound=BaseModel)

SPEC = FederationSpec(
    title="Two words",
    data=DataSpec(name="cifar10", partition="dirichlet:0.3", clients=3, public=True, options={"augment": False}),
    model=ModelSpec(name="cifar-cnn", options={"classes": 20}),
    recipe=Recipe(lr=0.25, plain_unlearning=True, seed=4),
    rounds=7,
    participation=0.5,
    forgetting=Forgetting(method="natural", method_options={"rounds": "2"}, also_remember=("federaser", "fukd")),
    data_seed=9,
    device="cuda:1",
    data_dir=Path("/data"),
)


def parsed(model: type[M], words: Sequence[str]) -> M:
    """The options that a command with these flags receives."""
    parser = Parser()
    add_settings(parser, model, nested=True)
    return resolve(model, parser.parse_args(words))


@pytest.mark.parametrize("shard", [0, 2, 3])
def test_flags_of_a_client_give_its_options(shard: int) -> None:
    options = SPEC.client_options(shard)
    assert parsed(RunOptions, client_flags(SPEC, shard)) == options
    assert (options.name, options.distiller) == ((DISTILLER, True) if shard == 3 else (f"client-{shard}", False))
    assert (options.shard, options.data_option) == (f"{shard}/4", {"augment": "false"})


def test_flags_of_a_client_fit_every_command() -> None:
    for words in (client_flags(SPEC, 1), data_flags(SPEC)):
        options = parsed(UnlearnOptions, words)
        assert (options.data, options.data_seed, options.data_dir) == ("cifar10", 9, Path("/data"))


def test_every_command_of_a_client_names_the_device() -> None:
    for words in (client_flags(SPEC, 1), client_flags(SPEC, 3), data_flags(SPEC)):
        assert words[words.index("--device") + 1] == "cuda:1"


def test_flags_of_the_server_give_its_configuration() -> None:
    config = SPEC.server_config(clients=2, plan={"heartbeat_seconds": 1.0, "absent_seconds": 6.0})
    found = parsed(FederationConfig, ["--id", config.id, *server_flags(config)])
    assert found == config
    assert (found.plan.start_clients, found.plan.participation, found.model_options) == (2, 0.5, {"classes": "20"})
    assert "--id" not in server_flags(config), "the server chooses its own"


def test_seeds_of_data_initial_weights_and_training_are_independent() -> None:
    other = SPEC.seeded(data=5, init=6, training=7)
    assert (other.recipe.seed, other.init_seed, other.data_seed, other.context(0).seed) == (7, 6, 5, 5)
    assert other.model_copy(update={"recipe": SPEC.recipe, "data_seed": 9, "init_seed": None}) == SPEC
    small = SPEC.model_copy(update={"model": ModelSpec()})
    weights = {
        seeds: bytes(initial_model(small.seeded(data=1, init=seeds[0], training=seeds[1]))[1]) for seeds in PAIRS
    }
    assert weights[1, 1] == weights[1, 2] != weights[2, 1], "the initial weights depend on their own seed only"
