"""One round in plain steps, through the method's protocol alone: `fedmpi/train_round.py` explained.

No ranks, waves, exchange or clock: each phase publishes, trains its clients one after the other, and the method makes
the new state out of their weighted mean. `contract/test_every_method.py`: every method has the engine's bits.
It leaves out what a test of bits does not need: dropout's generator, and clients that diverge.
"""

from fedmpi.exactsum import ExactSum, WeightSum
from fedmpi.federation.cohort import learning_rate
from fedmpi.methods.protocol import sums_of
from fedmpi.methods.values import Client, Contributions, Phase
from fedmpi.rounds.client import local_work
from fedmpi.rounds.state import Published, ServerState, Setup, client_of, plan_phase
from fedmpi.tensors import Layout, Params, max_magnitudes


def plain_round(setup: Setup, number: int, state: ServerState) -> ServerState:
    """The state after round `number`."""
    for phase in setup.method.phases(number):
        state = plain_phase(setup, number, phase, state)
    return state


def plain_phase(setup: Setup, number: int, phase: Phase, state: ServerState) -> ServerState:
    """Publish; narrow, train, upload for each client; the mean; update."""
    method, specs = setup.method, setup.method.state_specs()
    of = sums_of(method)  # the server tensor that each sum is of
    tasks = plan_phase(setup, number, phase).tasks
    if not tasks:
        return state
    largest = max(method.client_weight(task) for task in tasks)
    weight = {task.client: method.client_weight(task) / largest for task in tasks}
    sent = publish(setup, state, [t.tier for t in tasks])
    bounds = {name: sent.bounds[of[name]] for name in of}
    sums, weights = (
        ExactSum({name: specs[of[name]] for name in of}, bounds, sum(weight.values())),
        WeightSum(len(tasks)),
    )
    memories = dict(state.memories)
    for task in tasks:
        client = client_of(setup, task, sent, state.memories.get(task.client))
        upload, memory = train(setup, client)
        if memory:
            memories[task.client] = setup.memories.put(task.client, number, memory)
        client = client_of(setup, task, sent, memories.get(task.client))  # as the server sees it: with its new memory
        regions = method.regions(client)
        for name, value in method.lift(upload, client):
            sums.add(name, value, weight[task.client], regions.get(name))
        weights.add(weight[task.client], {name: (specs[of[name]].shape, region) for name, region in regions.items()})
    means = {name: sums.mean(name, weights.of(name), state.params[of[name]]) for name in of}
    lr = learning_rate(setup.config.train, number, setup.config.rounds)
    made = Contributions(phase, number, lr, list(tasks), weights.share, sent.params)
    return ServerState(method.refresh(method.update(state.params, means, made)), memories)


def publish(setup: Setup, state: ServerState, tiers: list[int]) -> Published:
    """What the clients of these tiers get, and how large each tensor of the server may become."""
    nets = sorted(set(tiers))
    layout, names = Layout.of(setup.method.published_specs(nets)), list(setup.method.state_specs())
    published = layout.views(layout.new_buffer("cpu"))
    setup.method.publish(state.params, nets, published)
    magnitudes = max_magnitudes(state.params[name] for name in names).tolist()
    bounds = {name: setup.method.bound(name, magnitude) for name, magnitude in zip(names, magnitudes, strict=True)}
    return Published(published, bounds, {})


def train(setup: Setup, client: Client) -> tuple[Params, Params]:
    """The client's upload and its new memory."""
    method, trainer = setup.method, setup.trainers[client.task.tier]
    method.narrow(client.published, client.task.tier, trainer.net.params, client)
    method.train(trainer, client, local_work(setup, client))
    upload = {name: value.clone() for name, value in method.upload(trainer.net, client).items()}
    return upload, method.remember(trainer.net, client) if method.traits.keeps_memory else {}
