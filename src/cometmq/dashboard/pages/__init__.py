"""The pages: each module has the routes of one view, and makes its values from admin calls."""
