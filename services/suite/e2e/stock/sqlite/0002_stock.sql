-- What was ordered of each article.

-- +goose Up
-- What each order takes now.
CREATE TABLE taken (
    order_id TEXT NOT NULL,
    sku      TEXT NOT NULL,
    quantity INTEGER NOT NULL,
    PRIMARY KEY (order_id, sku)
);

-- Each event that was counted, and in what order. The key would refuse a second effect.
CREATE TABLE counted (
    position INTEGER PRIMARY KEY AUTOINCREMENT,
    event_id TEXT NOT NULL UNIQUE,
    order_id TEXT NOT NULL,
    version  INTEGER NOT NULL
);
