"""Federated averaging as a loop in one process: plain_loop.py FOLDER SITES ROUNDS STEPS OUT."""

import copy
import sys

import torch
from network import Network
from training import accuracy, load, train

folder, (sites, rounds, steps) = sys.argv[1], map(int, sys.argv[2:5])
torch.manual_seed(1)
network = Network()
data = [load(folder, site, "train") for site in range(1, sites + 1)]
for number in range(1, rounds + 1):
    trained = []
    for images, labels in data:
        local = copy.deepcopy(network)
        train(local, images, labels, steps)
        trained.append(local.state_dict())
    network.load_state_dict({name: sum(state[name] for state in trained) / sites for name in trained[0]})
    print("end of round", number)
print("accuracy", accuracy(network, folder, range(1, sites + 1)))
