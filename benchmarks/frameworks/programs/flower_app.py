"""Flower's federated averaging in its simulation: flower_app.py FOLDER SITES ROUNDS STEPS OUT."""

import sys

import torch
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg
from flwr.simulation import run_simulation
from network import Network
from training import accuracy, load, train

folder, (sites, rounds, steps) = sys.argv[1], map(int, sys.argv[2:5])
client, server = ClientApp(), ServerApp()


@client.train()
def train_site(message: Message, context: Context) -> Message:
    network = Network()
    network.load_state_dict(message.content["arrays"].to_torch_state_dict())
    images, labels = load(folder, int(context.node_config["partition-id"]) + 1, "train")
    loss = train(network, images, labels, steps)
    metrics = MetricRecord({"loss": loss, "num-examples": len(images)})
    return Message(RecordDict({"arrays": ArrayRecord(network.state_dict()), "metrics": metrics}), reply_to=message)


@server.main()
def serve(grid: Grid, context: Context) -> None:
    torch.manual_seed(1)
    network = Network()
    strategy = FedAvg(fraction_evaluate=0, min_train_nodes=sites, min_available_nodes=sites)
    result = strategy.start(grid, ArrayRecord(network.state_dict()), num_rounds=rounds)
    network.load_state_dict(result.arrays.to_torch_state_dict())
    print("accuracy", accuracy(network, folder, range(1, sites + 1)))


if __name__ == "__main__":
    options = {"client_resources": {"num_cpus": 1, "num_gpus": 0.0}}
    run_simulation(server_app=server, client_app=client, num_supernodes=sites, backend_config=options)
