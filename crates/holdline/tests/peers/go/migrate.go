//go:build go1.26

package main

import (
	"database/sql"
	"errors"
	"fmt"
	"strings"

	"github.com/golang-migrate/migrate/v4/database/postgres"
	"github.com/lib/pq"
)

func init() {
	more["golang-migrate"] = (*peer).migrate
}

// migrate takes the lock of migrations, which is named by a schema, a table and a database. It has
// no try, and waits in the server, which ends that soon.
func (p *peer) migrate(name string, wait bool) (*held, error) {
	parts := strings.Split(name, "/")
	url := fmt.Sprintf("postgres://postgres@%s/%s?sslmode=disable", p.servers[0], parts[2])
	if !wait {
		url += "&options=-clock_timeout%3D300"
	}
	database, err := sql.Open("postgres", url)
	if err != nil {
		return nil, err
	}
	config := postgres.Config{SchemaName: parts[0], MigrationsTable: parts[1], DatabaseName: parts[2]}
	driver, err := postgres.WithInstance(database, &config) // locks to make its table
	if err == nil {
		err = driver.Lock()
	}
	if err == nil {
		return &held{"-", func() error { return errors.Join(driver.Unlock(), driver.Close()) }}, nil
	}
	database.Close()
	if !wait && timedOut(err) {
		return nil, nil
	}
	return nil, err
}

// timedOut tells whether the server has ended a wait for a lock.
func timedOut(err error) bool {
	const lockNotAvailable = "55P03"
	var refusal *pq.Error
	return errors.As(err, &refusal) && refusal.Code == lockNotAvailable ||
		strings.Contains(err.Error(), "lock timeout")
}
