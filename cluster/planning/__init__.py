"""The rooms of the planner (pure): limits, health, money, market, packing, returns."""
