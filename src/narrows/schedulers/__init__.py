"""Who advances in a step, and by how much."""

# name -> "module:Class"
SCHEDULERS = {"continuous": "narrows.schedulers.continuous:Continuous"}
