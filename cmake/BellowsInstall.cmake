# Owner: house.
