"""A site of FLARE's recipe: flare_client.py FOLDER STEPS."""

import sys

import nvflare.client as flare
from network import Network
from training import load, train

folder, steps = sys.argv[1], int(sys.argv[2])
flare.init()
images, labels = load(folder, int(flare.get_site_name().removeprefix("site-")), "train")
network = Network()
while flare.is_running():
    network.load_state_dict(flare.receive().params)
    loss = train(network, images, labels, steps)
    flare.send(flare.FLModel(params=network.state_dict(), metrics={"loss": loss}))
