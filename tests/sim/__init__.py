"""A deterministic simulator of whole federations: the server's engine and handlers, and the client's own code.

The simulator owns the clock, the network, the disks and the order of all steps. Training is a small function.

scenario       what a seed decides: the configuration of the federation and the possible faults
world          event heap, random source and clock; first faults, then healing
server         the real engine and request handlers; the process can crash between any two steps
disk           what survives a crash of the server: records as text, updates as bytes, models as exact books
folder         sums books instead of tensors
weights        books: whose updates a model contains, how often and with which sign, and bytes that derive from them
client         a client: its worker and its owner's commands, which are the shipped code
process        processes and threads of a client, which run one at a time
client_disk    a client's disk, of which only synced data survives a power cut
transport      calls and streams that are lost, repeated, delayed and cut
trainer        training and evaluation as functions of the model
checker        what must hold after every transaction and at the end (facts, commit_checks, client_checks)
mutants        faults that are put into the code (core_mutants, client_mutants) and must be found
direct         requests without the client's code, for the test that chooses every step itself
"""
