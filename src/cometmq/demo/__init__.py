"""The main job on real data: one platform changes its tables, and others keep equal copies."""
