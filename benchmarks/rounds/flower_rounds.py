"""Time rounds of Flower's simulation without training; runs in Flower's own environment and prints JSON.

python benchmarks/rounds/flower_rounds.py <sites> <parameters> <rounds>
"""

import json
import sys
import time
from importlib.metadata import version
from itertools import pairwise

import numpy as np
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg
from flwr.simulation import run_simulation

client, server = ClientApp(), ServerApp()
sites, parameters, rounds = map(int, sys.argv[1:])
moments: list[float] = []


@client.train()
def train(message: Message, context: Context) -> Message:
    """Add one to everything, as ``benchmarks.parties.TrivialExecutor`` does."""
    arrays = message.content["arrays"].to_numpy_ndarrays()
    answer = {"arrays": ArrayRecord([array + 1 for array in arrays]), "metrics": MetricRecord({"num-examples": 1})}
    return Message(content=RecordDict(answer), reply_to=message)


@server.main()
def serve(grid: Grid, context: Context) -> None:
    """Average for so many rounds and record the time at the end of each."""
    strategy = FedAvg(fraction_evaluate=0, min_train_nodes=sites, min_available_nodes=sites)
    started = ArrayRecord([np.zeros(parameters, dtype=np.float32)])

    def note(number: int, arrays: ArrayRecord) -> None:
        moments.append(time.perf_counter())

    ended = strategy.start(grid, started, num_rounds=rounds, evaluate_fn=note)
    if not np.array_equal(ended.arrays.to_numpy_ndarrays()[0], np.full(parameters, rounds, dtype=np.float32)):
        raise SystemExit("not every round has added one")


if __name__ == "__main__":
    options = {"client_resources": {"num_cpus": 1, "num_gpus": 0.0}}
    run_simulation(server_app=server, client_app=client, num_supernodes=sites, backend_config=options)
    seconds = [after - before for before, after in pairwise(moments)]
    print(json.dumps({"seconds": seconds, "versions": {name: version(name) for name in ("flwr", "ray", "numpy")}}))
