"""argparse in `main`, and a step that closes over what it read."""

import argparse

import jax
import jax.numpy as jnp

import ejcache
from runs import outside


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--rate", type=float, default=0.1)
    parser.add_argument("--width", type=int, default=16)
    parser.add_argument("--output", default=str(outside.OUTPUT))
    parser.add_argument("--run-id", default=outside.RUN_ID)
    args = parser.parse_args()

    def loss_of(w, x):
        return (jax.nn.relu(x @ w) ** 2).sum() / args.width

    @ejcache.ejit
    def step(w, x):
        loss, grad = jax.value_and_grad(loss_of)(w, x)
        return w - args.rate * grad, loss

    w = jnp.ones((8, args.width))
    for i in range(3):
        w, loss = step(w, jnp.ones((4, 8)))
        print(outside.STARTED, args.run_id, args.output, outside.JOB, i, loss)
    return loss


if __name__ == "__main__":
    LOSS = main()
