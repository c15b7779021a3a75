"""The tests after a round, spread over the ranks: the method's nets on the whole test set and, if clients have nets of
their own, each client's net on its own test data.

A client's net is what the client would begin its next round with (`narrow`), after the adaptation that its method gives
it (a step of SGD). Every client that has test data is tested (or a choice of them, `evaluation.clients`), whether or
not it ever took part. The rank that tests a client reads its memory.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import torch

from fedmpi import seeds
from fedmpi.data.partition import Partition
from fedmpi.data.personal import choose_test, personal_tests, some
from fedmpi.errors import ConfigError
from fedmpi.federation.assignment import Task, assign
from fedmpi.learning.evaluate import ClientScores, TierScore, points_of, test_nets
from fedmpi.learning.flat import FlatNet
from fedmpi.methods.protocol import Method
from fedmpi.rounds.client import local_work
from fedmpi.rounds.publish import share_versions, take_late
from fedmpi.rounds.state import Published, ServerState, Setup, client_of, personal_task, reestimates

if TYPE_CHECKING:
    from fedmpi.config.schema import Config
    from fedmpi.data.dataset import Dataset


def own_tests(
    config: Config, method: Method, partition: Partition, dataset: Dataset, validation: Partition | None = None
) -> Partition | None:
    """Returns each client's own test examples: its share of `validation` if that takes the place of the test data.

    Returns None if clients are not tested. Raises `ConfigError`.
    """
    evaluation = config.evaluation
    if evaluation.personal == "off" and not method.tested():
        name = config.method.name
        raise ConfigError(
            "evaluation.personal", f"off, but {name} has no common net, so nothing would be tested; allowed: auto, on"
        )
    if evaluation.personal == "off" or (evaluation.personal == "auto" and not method.personal):
        return None
    if validation is not None:
        return some(validation, evaluation.clients, config.seed)
    how = choose_test(evaluation.personal_test, config.partition, config.data.used())
    tests = personal_tests(how, partition, dataset, config.seed, evaluation.clients)
    if not len(tests.indices):
        raise ConfigError(
            "evaluation.personal_test", f"{how}: no client has a test example; take another, or evaluation.personal=off"
        )
    return tests


def test_tiers(setup: Setup, round_number: int, published: Published) -> dict[str, TierScore]:
    """Tests the nets that `Method.tested` names on the whole test set. Returns their scores by name."""
    tested = setup.method.tested()

    def load(place: int) -> FlatNet:
        take_late(setup, published, tested[place].index)
        net = setup.trainers[tested[place].index].net
        setup.method.narrow(published.params, tested[place].index, net.params)
        return net

    def restat_seed(batch: int) -> int:
        return seeds.mix("restat", setup.config.seed, round_number, batch)

    with setup.clock.stage("evaluation", round_number):
        scores = test_nets(
            setup.evaluation,
            load,
            setup.data,
            setup.comm.allreduce_sum,
            worker=setup.workers.index(setup.comm.rank) if setup.comm.rank in setup.workers else None,
            num_workers=len(setup.workers),
            restat_seed=restat_seed if reestimates(setup.config, round_number) else None,
        )
        published.wait()
    return {net.name: score for net, score in zip(tested, scores, strict=True)}


def test_clients(setup: Setup, round_number: int, state: ServerState, published: Published) -> ClientScores | None:
    """Returns the scores of the clients' own nets on their own test data, None if clients are not tested."""
    tests = setup.personal_tests
    if tests is None:
        return None
    evaluation = setup.config.evaluation
    clients = (tests.sizes > 0).nonzero()[0]
    with setup.clock.stage("evaluation", round_number):
        tasks = [personal_task(setup, int(client), round_number) for client in clients]
        published = replace(published, versions=share_versions(setup, state, tasks))
        points = torch.zeros(tests.num_clients, dtype=torch.float64)
        scoring = setup.evaluation.scoring
        for task in assign(tasks, setup.workers, setup.comm.size).by_rank[setup.comm.rank]:
            net, restat = client_net(setup, task, published)
            own = torch.tensor(tests.client(task.client), device=setup.data.device)
            # One example has no batch statistics.
            statistics_of = restat if reestimates(setup.config, round_number) or len(own) == 1 else None
            points[task.client] = points_of(net, setup.data, scoring, own, evaluation.batch_size, statistics_of)
        setup.comm.allreduce_sum(points.view(torch.int64))  # one rank fills in each: the bits of the others are 0
    requested = evaluation.clients or tests.num_clients
    found = points.tolist()
    scores = [scoring.score(found[client], scoring.num_counted(tests.client(client))) for client in clients.tolist()]
    return ClientScores(clients, np.array(scores), requested - len(clients), scoring.name)


def client_net(setup: Setup, task: Task, published: Published) -> tuple[FlatNet, tuple[np.ndarray, int]]:
    """Puts the net that a client is tested with into place.

    Returns it with what its own BatchNorm statistics are re-estimated over: the numbers of the client's training
    examples, int64, and the seed of their augmentation.
    """
    method = setup.method
    trainer = setup.trainers[task.tier]
    client = client_of(setup, task, published)
    method.narrow(published.params, task.tier, trainer.net.params, client)
    seed = seeds.mix("personal", setup.config.seed, task.round_number, task.client)
    with seeds.global_generators(seed, setup.data.device):
        method.adapt(trainer, client, local_work(setup, client))
    return trainer.net, (client.examples, seed)
