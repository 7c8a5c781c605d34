"""The flights that left New York in 2013, as a stream of messages: read, replay, aggregate.

data.py       the flights in the order of departure          replay.py    to a topic, at a pace
delays.py     a Spark job: delays by carrier and hour        __main__.py  all of it, checked
"""
