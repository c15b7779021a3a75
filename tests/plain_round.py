"""One round in plain steps, to read line for line beside `fedmpi/train_round.py`, which has the same bits.

It calls the method's protocol alone, without ranks, waves, exchange or clock: each phase publishes, trains its clients
one after the other, and the method makes the new state out of their weighted means.
`contract/test_every_method.py` compares the bits of every method. Left out is what a test of bits does not need:
dropout's generator, and clients that diverge.
"""

from fedmpi.exactsum import ExactSum, WeightSum
from fedmpi.federation.cohort import learning_rate
from fedmpi.methods.values import Client, Contributions, Phase
from fedmpi.rounds.client import local_work
from fedmpi.rounds.state import Published, ServerState, Setup, client_of, plan_phase
from fedmpi.tensors import Layout, Params, max_magnitudes


def plain_round(setup: Setup, number: int, state: ServerState) -> ServerState:
    """Returns the state after round `number`."""
    for phase in setup.method.phases(number):
        published = publish(setup, number, phase, state)
        if published.plan.tasks:
            state = train_clients_and_update(setup, number, phase, state, published)
    return state


def publish(setup: Setup, number: int, phase: Phase, state: ServerState) -> Published:
    """Returns what the phase's clients get, and how large each tensor of the server may become."""
    plan = plan_phase(setup, number, phase)
    nets = sorted({task.tier for task in plan.tasks})
    layout, names = Layout.of(setup.method.published_specs(nets)), list(setup.method.state_specs())
    params = layout.views(layout.new_buffer("cpu"))
    setup.method.publish(state.params, nets, params)
    magnitudes = max_magnitudes(state.params[name] for name in names).tolist()
    bounds = {name: setup.method.bound(name, magnitude) for name, magnitude in zip(names, magnitudes, strict=True)}
    return Published(params, bounds, dict(state.memories), plan)


def train_clients_and_update(
    setup: Setup, number: int, phase: Phase, state: ServerState, published: Published
) -> ServerState:
    """Narrows, trains and uploads each client; adds; divides once; updates."""
    method, specs, tasks = setup.method, setup.method.state_specs(), published.plan.tasks
    tensor_of = method.sums()
    largest = max(method.client_weight(task) for task in tasks)
    weights = {task.client: method.client_weight(task) / largest for task in tasks}
    bounds = {name: published.bounds[tensor] for name, tensor in tensor_of.items()}
    sums = ExactSum({name: specs[tensor] for name, tensor in tensor_of.items()}, bounds, sum(weights.values()))
    senders = WeightSum(len(tasks))
    memories = dict(state.memories)
    for task in tasks:
        upload, memory = train(setup, client_of(setup, task, published))
        memory_digest = ""
        if memory:
            memories[task.client] = setup.memories.put(task.client, number, memory)
            memory_digest = memories[task.client][1]
        client = client_of(setup, task, published, memory_digest)  # the server sees its new memory
        regions = method.regions(client)
        for name, value in method.lift(upload, client):
            sums.add(name, value, weights[task.client], regions.get(name))
        shaped = {name: (specs[tensor_of[name]].shape, region) for name, region in regions.items()}
        senders.add(weights[task.client], shaped)
    means = {name: sums.mean(name, senders.of(name), state.params[tensor]) for name, tensor in tensor_of.items()}
    lr = learning_rate(setup.config.train, number, setup.config.rounds)
    contributions = Contributions(phase, number, lr, list(tasks), senders.share, published.params)
    return ServerState(method.update(state.params, means, contributions), memories)


def train(setup: Setup, client: Client) -> tuple[Params, Params]:
    """Returns the client's upload and its new memory."""
    method, trainer = setup.method, setup.trainers[client.task.tier]
    method.narrow(client.published, client.task.tier, trainer.net.params, client)
    method.train(trainer, client, local_work(setup, client))
    upload = {name: value.clone() for name, value in method.upload(trainer.net, client).items()}
    return upload, method.remember(trainer.net, client) if method.keeps_memory else {}
