"""Model folders, one a sub-folder; tokmix finds them by the sub-folder's name: `tokmix train DATA --from NAME`."""
