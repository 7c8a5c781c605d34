"""Settings of the shop; the environment has the addresses."""

import os

SECRET_KEY = os.environ.get("SECRET_KEY", "only for this example")
ALLOWED_HOSTS = ["127.0.0.1"]
ROOT_URLCONF = "examples.services.shop.urls"
INSTALLED_APPS = ["examples.services.shop"]
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"
USE_TZ = True
DATABASES = {
    "default": {
        "ENGINE": "django.db.backends.sqlite3",
        "NAME": os.environ.get("SHOP_DATABASE", "shop.sqlite"),
        "OPTIONS": {"timeout": 30, "transaction_mode": "IMMEDIATE"},
    }
}
NAME_SERVER = os.environ.get("NAME_SERVER", "127.0.0.1:9876")
TOPIC = os.environ.get("TOPIC", "orders")
