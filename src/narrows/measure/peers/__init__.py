"""Narrows beside its peers: the same model file on the same machine, in turn; speeds, and ratios paired by round.

A round measures every case with every system, each in a process of its own with the same number of threads, so that
a machine that changes its pace changes it for all. Narrows is measured twice, as its peers are:

- **narrows** is `narrows bench`, beside llama.cpp and transformers: all three drive the model directly. Narrows also
  chooses the likeliest token, which llama.cpp's programs do not. llama.cpp runs with flash attention off and on, and
  counts with the faster of the two in each round.
- **narrows LLM** is `LLM.generate`, beside the same call of OpenVINO GenAI and vLLM.

A measurement is noisy when something else used the machine meanwhile: recorded, but left out where quiet ones exist.
"""
