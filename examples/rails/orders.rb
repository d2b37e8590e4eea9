# Orders of a shop, whose changes commit events, and shipments that follow them. See docs/howto/applications.md.
#
#     orders.rb place ID TOTAL | change ID TOTAL | ship        SHOP and SHIPPING are URLs

require "active_record"
require "json"

# These statements have effects. The query cache, on in each request and job, would answer the second of two equal
# ones without running it.
module Statements
  def run(sql, *values)
    uncached { connection.select_all(sanitize_sql([sql, *values])) }
  end
end

class Shop < ActiveRecord::Base
  extend Statements
  self.abstract_class = true
  establish_connection ENV.fetch("SHOP")
end

class NoCredit < StandardError; end

class Order < Shop
  def self.place(id, total)
    transaction do
      order = create!(id: id, total: total)
      order.enqueue("OrderPlaced")
      order.reserve_credit
    end
  end

  def self.change(id, total)
    transaction do
      order = lock.find(id)
      order.update!(total: total, version: order.version + 1)
      order.enqueue("OrderChanged")
      order.reserve_credit
    end
  end

  # Adds an event to the transaction that has changed the order.
  def enqueue(event_type)
    self.class.run("SELECT outbox.enqueue('order', ?, ?, ?::jsonb, version => ?)",
                   id, event_type, { total: total }.to_json, version)
  end

  def reserve_credit
    raise NoCredit, "this takes the order back, and its event" if total > 1000
  end
end

class Shipment < ActiveRecord::Base
  extend Statements
  establish_connection ENV["SHIPPING"] if ENV["SHIPPING"]

  def self.handle(event)
    transaction do
      fresh = run("SELECT inbox.begin_event('shipping', ?, 'shop')", event["event_id"]).cast_values[0]
      next unless fresh # it came before
      order = JSON.parse(event["payload"]).merge(order_id: event["aggregate_id"], version: event["version"])
      run("SELECT inbox.apply('shipment', ARRAY['order_id'], 'version', ?::jsonb)", order.to_json)
    end
  end

  def self.follow
    loop do
      events = Shop.run("SELECT *, convert_from(payload, 'UTF8') AS payload FROM outbox.fetch('shipping')").to_a
      events.each { |event| handle(event) }
      if events.empty?
        sleep 0.1
      else
        Shop.run("SELECT outbox.ack(?)", events[0]["token"])
      end
    end
  end
end

Shop.cache do # as Rails does in each request and job
  case ARGV[0]
  when "place" then Order.place(ARGV[1], Integer(ARGV[2]))
  when "change" then Order.change(ARGV[1], Integer(ARGV[2]))
  when "ship" then Shipment.cache { Shipment.follow }
  else abort "orders.rb place ID TOTAL | change ID TOTAL | ship"
  end
end
