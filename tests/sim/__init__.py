"""A deterministic simulator of whole federations: the real core and engine, a simulated clock, network and disk.

scenario   what a seed decides: the federation's configuration and the faults that may strike
world      one event heap, one random source, one clock; chaos first, then healing
disk       what survives a crash: the store's own records as bytes, model and spool files as exact sums
weights    models as exact books: whose updates are in them, how often and with which sign
server     the engine behind requests; crashes between any two steps and comes back
client     a worker, its supervisor and its owner, who asks to be forgotten
checker    what must hold after every transaction, and at the end
"""
