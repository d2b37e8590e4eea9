// Orders of a shop, whose changes commit events, and shipments that follow them. See docs/howto/applications.md.
//
//	orders place ID TOTAL | change ID TOTAL | ship        SHOP and SHIPPING are connection strings
package main

import (
	"context"
	"encoding/json"
	"errors"
	"log"
	"os"
	"strconv"
	"time"

	"github.com/jackc/pgx/v5"
)

type order struct {
	ID      string `json:"-"`
	Total   int    `json:"total"`
	Version int64  `json:"-"`
}

// enqueue adds an event to the transaction that has changed the order.
func enqueue(ctx context.Context, tx pgx.Tx, o order, eventType string) error {
	payload, err := json.Marshal(o)
	if err != nil {
		return err
	}
	_, err = tx.Exec(ctx, "SELECT outbox.enqueue('order', $1::text, $2, $3::jsonb, version => $4)",
		o.ID, eventType, string(payload), o.Version)
	return err
}

func place(ctx context.Context, shop *pgx.Conn, id string, total int) error {
	return pgx.BeginFunc(ctx, shop, func(tx pgx.Tx) error {
		o := order{ID: id, Total: total, Version: 1}
		if _, err := tx.Exec(ctx, "INSERT INTO orders (id, total) VALUES ($1, $2)", o.ID, o.Total); err != nil {
			return err
		}
		if err := enqueue(ctx, tx, o, "OrderPlaced"); err != nil {
			return err
		}
		return reserveCredit(o)
	})
}

func change(ctx context.Context, shop *pgx.Conn, id string, total int) error {
	return pgx.BeginFunc(ctx, shop, func(tx pgx.Tx) error {
		o := order{ID: id, Total: total}
		row := tx.QueryRow(ctx, "UPDATE orders SET total = $2, version = version + 1 WHERE id = $1 RETURNING version",
			o.ID, o.Total)
		if err := row.Scan(&o.Version); err != nil {
			return err
		}
		if err := enqueue(ctx, tx, o, "OrderChanged"); err != nil {
			return err
		}
		return reserveCredit(o)
	})
}

func reserveCredit(o order) error {
	if o.Total > 1000 {
		return errors.New("no credit: this takes the order back, and its event")
	}
	return nil
}

type event struct {
	Token, EventID, AggregateID string
	Version                     int64
	Payload                     []byte
}

func handle(ctx context.Context, shipping *pgx.Conn, e event) error {
	return pgx.BeginFunc(ctx, shipping, func(tx pgx.Tx) error {
		var isNew bool
		err := tx.QueryRow(ctx, "SELECT inbox.begin_event('shipping', $1, 'shop')", e.EventID).Scan(&isNew)
		if err != nil || !isNew { // it came before
			return err
		}
		_, err = tx.Exec(ctx, `SELECT inbox.apply('shipment', ARRAY['order_id'], 'version',
			convert_from($1, 'UTF8')::jsonb || jsonb_build_object('order_id', $2::text, 'version', $3::bigint))`,
			e.Payload, e.AggregateID, e.Version)
		return err
	})
}

func ship(ctx context.Context, shop, shipping *pgx.Conn) error {
	for {
		rows, _ := shop.Query(ctx, `SELECT token::text, event_id::text, aggregate_id, version, payload
			FROM outbox.fetch('shipping')`)
		events, err := pgx.CollectRows(rows, pgx.RowToStructByPos[event])
		if err != nil {
			return err
		}
		for _, e := range events {
			if err := handle(ctx, shipping, e); err != nil {
				return err
			}
		}
		if len(events) == 0 {
			time.Sleep(100 * time.Millisecond)
		} else if _, err := shop.Exec(ctx, "SELECT outbox.ack($1)", events[0].Token); err != nil {
			return err
		}
	}
}

func main() {
	ctx := context.Background()
	shop := connect(ctx, "SHOP")
	var err error
	if os.Args[1] == "ship" {
		err = ship(ctx, shop, connect(ctx, "SHIPPING"))
	} else {
		var total int
		if total, err = strconv.Atoi(os.Args[3]); err == nil && os.Args[1] == "place" {
			err = place(ctx, shop, os.Args[2], total)
		} else if err == nil {
			err = change(ctx, shop, os.Args[2], total)
		}
	}
	if err != nil {
		log.Fatal(err)
	}
}

func connect(ctx context.Context, name string) *pgx.Conn {
	connection, err := pgx.Connect(ctx, os.Getenv(name))
	if err != nil {
		log.Fatal(err)
	}
	return connection
}
