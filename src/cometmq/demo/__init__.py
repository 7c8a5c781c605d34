"""The main job on real data: one platform changes its tables, others keep theirs equal."""
