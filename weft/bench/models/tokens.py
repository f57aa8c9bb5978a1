"""Token sequences that a language model can learn."""

import torch
from torch import Tensor


def make_tokens(vocabulary: int, batch: int, sequence: int, seed: int) -> tuple[Tensor, Tensor]:
    """Tokens and their successors, int64 `[batch, sequence]` each, drawn from one fixed Markov chain.

    The chain uses 64 tokens of the vocabulary (fewer where it is smaller), and each has four successors with
    probabilities 0.7, 0.1, 0.1 and 0.1: a model goes from `log(vocabulary)` to about 0.94 nats. `seed` chooses the
    sample; the chain is the same for all.
    """
    chain = torch.Generator().manual_seed(0)
    states = min(64, vocabulary)
    names = torch.randperm(vocabulary, generator=chain)[:states]
    successors = torch.rand(states, states, generator=chain).argsort(1)[:, :4]
    probabilities = torch.tensor([0.7, 0.1, 0.1, 0.1])[: successors.shape[1]]

    sample = torch.Generator().manual_seed(seed)
    choices = torch.multinomial(probabilities, batch * sequence, replacement=True, generator=sample)
    state = torch.randint(states, (batch,), generator=sample)
    visited = [state]
    for choice in choices.view(sequence, batch):
        state = successors[state, choice]
        visited.append(state)
    tokens = names[torch.stack(visited, 1)]
    return tokens[:, :-1].contiguous(), tokens[:, 1:].contiguous()
