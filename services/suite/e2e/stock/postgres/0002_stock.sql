-- What was ordered of each article.

-- +goose Up
-- What each order takes now.
CREATE TABLE taken (
    order_id TEXT COLLATE "C" NOT NULL,
    sku      TEXT COLLATE "C" NOT NULL,
    quantity BIGINT NOT NULL,
    PRIMARY KEY (order_id, sku)
);

-- Each event that was counted, and in what order. The key would refuse a second effect.
CREATE TABLE counted (
    position BIGINT GENERATED ALWAYS AS IDENTITY,
    event_id TEXT COLLATE "C" PRIMARY KEY,
    order_id TEXT COLLATE "C" NOT NULL,
    version  BIGINT NOT NULL
);
