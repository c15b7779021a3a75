"""One simulator, or bare loops, on one workload: nets, seeded images and drivers. It imports nothing of fedmpi.

`peers.py` starts it in an environment of the simulator's own, and reads the seconds of each round from its last line.
"""

import json
import logging
import os
import socket
import subprocess
import sys
import time
from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np
import torch
from bare_process import resnet
from torch import Tensor, nn
from torch.nn import functional

WORKERS = 2
SEED = 20261120
WORKLOADS: dict[str, dict[str, Any]] = {
    "cnn": {"clients": 200, "images": 50, "cohort": 20, "batch": 10, "momentum": 0.0, "rounds": 12},
    "resnet18": {"clients": 20, "images": 128, "cohort": 4, "batch": 64, "momentum": 0.9, "rounds": 4},
}
"""The first sixth of the rounds, one at least, warms up."""
RATE = 0.05


def small_cnn(num_classes: int = 10, example_shape: Sequence[int] = (3, 32, 32)) -> nn.Module:
    """Returns a net of 2.1 million parameters: a client's exchange is long, and its training short."""
    first = nn.Conv2d(example_shape[0], 32, 3, padding=1)
    convs = (first, nn.ReLU(), nn.Conv2d(32, 64, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2))
    return nn.Sequential(*convs, nn.Flatten(), nn.Linear(64 * 16 * 16, 128), nn.ReLU(), nn.Linear(128, num_classes))


def make_net(workload: str) -> nn.Module:
    torch.manual_seed(SEED)
    return small_cnn() if workload == "cnn" else resnet(3, 10, 64, [2, 2, 2, 2])


def images(workload: str = "cnn") -> dict[str, np.ndarray]:
    """Returns the images as fedmpi takes a data set of one's own."""
    sizes = WORKLOADS[workload]
    count = sizes["clients"] * sizes["images"]
    generator = np.random.default_rng(SEED)
    x = generator.integers(256, size=(count + 100, 32, 32, 3), dtype=np.uint8)
    y = generator.integers(10, size=count + 100)
    y[:10] = np.arange(10)
    return {"train_x": x[:count], "train_y": y[:count], "test_x": x[count:], "test_y": y[count:]}


def clients_of(workload: str) -> list[tuple[Tensor, Tensor]]:
    """Returns each client's images, normalized, and labels."""
    data = images(workload)
    inputs = torch.from_numpy(data["train_x"]).permute(0, 3, 1, 2).float().div_(255).sub_(0.5).div_(0.29)
    size = WORKLOADS[workload]["images"]
    labels = torch.from_numpy(data["train_y"])
    return list(zip(inputs.contiguous().split(size), labels.split(size), strict=True))


def train_epoch(workload: str, net: nn.Module, inputs: Tensor, labels: Tensor) -> None:
    """Trains one client as every simulator here does."""
    sizes = WORKLOADS[workload]
    sgd = torch.optim.SGD(net.parameters(), lr=RATE, momentum=sizes["momentum"])
    for x, y in zip(inputs.split(sizes["batch"]), labels.split(sizes["batch"]), strict=True):
        sgd.zero_grad()
        torch.autograd.backward(functional.cross_entropy(net(x), y))
        sgd.step()


def bare(workload: str) -> list[float]:
    """Trains a round's clients in processes that exchange nothing; a round is as long as its slowest process."""
    context = torch.multiprocessing.get_context("spawn")
    barrier, queue = context.Barrier(WORKERS), context.Queue()
    workers = [context.Process(target=_bare_worker, args=(workload, barrier, queue)) for _ in range(WORKERS)]
    for worker in workers:
        worker.start()
    taken = [queue.get() for _ in workers]
    for worker in workers:
        worker.join()
    return [max(seconds) for seconds in zip(*taken, strict=True)]


def _bare_worker(workload: str, barrier: Any, queue: Any) -> None:
    torch.set_num_threads(1)
    sizes, net, clients, seconds = WORKLOADS[workload], make_net(workload), clients_of(workload), list[float]()
    for number in range(sizes["rounds"]):
        barrier.wait()
        started = time.perf_counter()
        for place in range(sizes["cohort"] // WORKERS):
            train_epoch(workload, net, *clients[(number * sizes["cohort"] + place) % len(clients)])
        seconds.append(time.perf_counter() - started)
    queue.put(seconds)


def pfl(workload: str) -> list[float]:
    """Trains with pfl-research: as many processes as workers, which add up their clients' changes by gloo."""
    if "PFL_WORKER_RANK" not in os.environ:
        return _pfl_workers()
    from pfl.aggregate.simulate import SimulatedBackend
    from pfl.aggregate.weighting import WeightByDatapoints
    from pfl.algorithm.base import NNAlgorithmParams
    from pfl.algorithm.federated_averaging import FederatedAveraging
    from pfl.callback.base import TrainingProcessCallback
    from pfl.data.federated_dataset import FederatedDataset
    from pfl.data.pytorch import PyTorchTensorDataset
    from pfl.data.sampling import get_user_sampler
    from pfl.hyperparam.base import NNTrainHyperParams
    from pfl.metrics import Metrics
    from pfl.model.pytorch import PyTorchModel

    sizes, net, clients, stamps = WORKLOADS[workload], make_net(workload), clients_of(workload), list[float]()
    net.loss = lambda x, y: functional.cross_entropy(net(x), y)
    net.metrics = lambda x, y: {}

    class Stamps(TrainingProcessCallback):
        def on_train_begin(self, *, model: Any) -> Any:
            stamps.append(time.perf_counter())
            return Metrics()

        def after_central_iteration(self, aggregate_metrics: Any, model: Any, *, central_iteration: int) -> Any:
            stamps.append(time.perf_counter())
            return False, Metrics()

    sampler = get_user_sampler("minimize_reuse", list(range(sizes["clients"])))
    data = FederatedDataset(lambda client: PyTorchTensorDataset(clients[client], user_id=str(client)), sampler)
    model = PyTorchModel(
        net, partial(torch.optim.SGD, momentum=sizes["momentum"]), torch.optim.SGD(net.parameters(), lr=1.0)
    )
    params = NNAlgorithmParams(sizes["rounds"], 10**9, sizes["cohort"], 0)
    backend = SimulatedBackend(training_data=data, val_data=data, postprocessors=[WeightByDatapoints()])
    local = NNTrainHyperParams(local_num_epochs=1, local_learning_rate=RATE, local_batch_size=sizes["batch"])
    FederatedAveraging().run(params, backend, model, local, None, [Stamps()], send_metrics_to_platform=False)
    return np.diff(stamps).tolist()


def _pfl_workers() -> list[float]:
    """Starts this program once for each worker; returns what the first one has measured."""
    sockets = [socket.socket() for _ in range(WORKERS)]
    for one in sockets:
        one.bind(("127.0.0.1", 0))
    addresses = ",".join(f"127.0.0.1:{one.getsockname()[1]}" for one in sockets)
    for one in sockets:
        one.close()
    told = [{"PFL_WORKER_ADDRESSES": addresses, "PFL_WORKER_RANK": str(rank)} for rank in range(WORKERS)]
    command = [sys.executable, *sys.argv]
    workers = [subprocess.Popen(command, env=os.environ | words, stdout=subprocess.PIPE, text=True) for words in told]
    lines = [worker.communicate()[0].splitlines()[-1] for worker in workers]
    seconds: list[float] = json.loads(lines[0])
    return seconds


ACTOR: dict[str, Any] = {}
"""What a process of Ray keeps from one client of Flower to the next."""


def flower(workload: str) -> list[float]:
    """Trains with Flower's simulation: as many actors of Ray as workers."""
    from flwr.app import ArrayRecord
    from flwr.clientapp import ClientApp
    from flwr.serverapp import ServerApp
    from flwr.serverapp.strategy import FedAvg
    from flwr.simulation import run_simulation

    logging.getLogger("flwr").setLevel(logging.ERROR)
    sizes, stamps, client, server = WORKLOADS[workload], list[float](), ClientApp(), ServerApp()

    @client.train()
    def train(message: Any, context: Any) -> Any:
        import peer_process  # by name, so that ACTOR stays between two calls in one actor

        return peer_process.flower_client(workload, message, context.node_config["partition-id"])

    @server.main()
    def serve(grid: Any, context: Any) -> None:
        torch.set_num_threads(1)
        sizes_of_cohort = {"min_train_nodes": sizes["cohort"], "min_available_nodes": sizes["clients"]}
        share = sizes["cohort"] / sizes["clients"]
        strategy = FedAvg(fraction_train=share, fraction_evaluate=0.0, **sizes_of_cohort)
        start = ArrayRecord(make_net(workload).state_dict())

        def stamp(number: int, arrays: Any) -> None:
            stamps.append(time.perf_counter())

        strategy.start(grid=grid, initial_arrays=start, num_rounds=sizes["rounds"], evaluate_fn=stamp)

    resources = {"init_args": {"num_cpus": WORKERS}, "client_resources": {"num_cpus": 1, "num_gpus": 0.0}}
    run_simulation(server_app=server, client_app=client, num_supernodes=sizes["clients"], backend_config=resources)
    return np.diff(stamps).tolist()


def flower_client(workload: str, message: Any, client: int) -> Any:
    """Trains one client of Flower in an actor."""
    from flwr.app import ArrayRecord, Message, MetricRecord, RecordDict

    torch.set_num_threads(1)
    if not ACTOR:
        ACTOR.update(net=make_net(workload), clients=clients_of(workload))
    net = ACTOR["net"]
    net.load_state_dict(message.content["arrays"].to_torch_state_dict())
    inputs, labels = ACTOR["clients"][client]
    train_epoch(workload, net, inputs, labels)
    metrics = MetricRecord({"num-examples": len(labels)})
    return Message(content=RecordDict({"arrays": ArrayRecord(net.state_dict()), "metrics": metrics}), reply_to=message)


if __name__ == "__main__":
    torch.set_num_threads(1)
    print(json.dumps({"bare": bare, "pfl": pfl, "flower": flower}[sys.argv[1]](sys.argv[2])), flush=True)
