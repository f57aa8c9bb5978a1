"""How sure predictions of what a kernel holds are."""

from __future__ import annotations

CLEARLY_FEWER = 0.9
"""The part of its registers that what replaces a kernel that spills wants at the most; that many of the predictions
are off by less than a tenth."""
DOUBTFUL_TIME = 1.1
"""How many times as long as predicted a kernel takes, in the mean, that is predicted to want up to a quarter more
registers than there are: of 204 of the sweeps 46 spilled, up to 64 bytes of a thread at 1.05 times the predicted time,
65 to 300 bytes at 1.2 to 1.5 times, more at 1.7 to 2.5 times."""
DOUBTFUL = 1.25
"""By how much predicted registers may exceed what there is, where a row fits in no other way: of 140 kernels of the
sweeps with column sums of more than 8192 columns that were predicted to exceed it by less, 97 spilled nothing, 116 no
more than 24 bytes of a thread, and none more than 136. What spills is compiled again under another schedule."""
