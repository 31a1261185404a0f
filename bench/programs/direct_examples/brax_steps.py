"""Brax: an environment's reset and step, and a policy's network."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
from brax import envs
from brax.training.agents.ppo import networks

from bench.programs.direct_examples.example import Example

if TYPE_CHECKING:
    from collections.abc import Iterator


def examples() -> Iterator[Example]:
    """The examples, in a fixed order."""
    key = jax.random.PRNGKey(0)
    env = envs.get_environment("inverted_pendulum", backend="spring")
    yield Example("brax: reset an environment", env.reset, (key,))
    yield Example("brax: step an environment", env.step, (env.reset(key), jnp.zeros(env.action_size)))
    policy = networks.make_ppo_networks(env.observation_size, env.action_size)
    params = policy.policy_network.init(key)

    def act(params: Any, observation: Any) -> Any:
        return policy.policy_network.apply(None, params, observation)

    yield Example("brax: a policy's network", act, (params, jnp.zeros((1, env.observation_size))))
