"""CIFAR-10 and Fashion-MNIST, divided as in the experiments of FedMatch."""
