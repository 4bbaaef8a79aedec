"""A deterministic simulator of whole federations: the real core and engine, a simulated clock, network and disk.

scenario       what a seed decides: the configuration of the federation and the possible faults
world          event heap, random source and clock; first faults, then healing
disk           what survives a crash: the records of the store as text, model and spool files as exact sums
weights        models as exact books: whose updates they contain, how often and with which sign
folder         sums books instead of tensors
server         the real engine behind requests; it can crash between any two steps
client         a client: its disk (client_state), its worker, and its owner
checker        what must hold after every transaction and at the end (facts, commit_checks)
"""
