"""What a node is asked before it gets work: its memory, a product that is known, and how fast it reaches a neighbour.

`trainers.preflight.tasks` starts it on the nodes, each in a process of its own: `trainers.preflight.own` and
`trainers.preflight.link`.
"""
