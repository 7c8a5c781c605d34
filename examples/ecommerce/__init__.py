"""A shop of three services that fail at times and still end consistent. Spark computes its funnel
and revenue.

events.py     the events between the services      service.py    a service: database and client
orders.py     places orders                        payments.py   charges them while the bank is up
stock.py      ships them while there is stock      redrive.py    sends dead letters again
funnel.py     Spark: events and money per minute   books.py      the invariants at the end
shop.py       a day of the shop                    __main__.py   all of it, checked
"""
