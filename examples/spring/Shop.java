// Orders of a shop, whose changes commit events, and shipments that follow them. See docs/howto/applications.md.
//
//     java Shop place ID TOTAL | change ID TOTAL | ship        SHOP and SHIPPING are URLs of JDBC

import java.util.List;
import java.util.Map;
import java.util.UUID;
import javax.sql.DataSource;
import org.springframework.context.annotation.AnnotationConfigApplicationContext;
import org.springframework.context.annotation.Bean;
import org.springframework.context.annotation.Configuration;
import org.springframework.jdbc.core.JdbcTemplate;
import org.springframework.jdbc.datasource.DataSourceTransactionManager;
import org.springframework.jdbc.datasource.DriverManagerDataSource;
import org.springframework.transaction.PlatformTransactionManager;
import org.springframework.transaction.annotation.EnableTransactionManagement;
import org.springframework.transaction.annotation.Transactional;
import org.springframework.transaction.support.TransactionTemplate;

@Configuration
@EnableTransactionManagement(proxyTargetClass = true)
public class Shop {
    @Bean
    DataSource dataSource() {
        return new DriverManagerDataSource(System.getenv("SHOP"));
    }

    @Bean
    PlatformTransactionManager transactions(DataSource shop) {
        return new DataSourceTransactionManager(shop);
    }

    @Bean
    Orders orders(DataSource shop) {
        return new Orders(new JdbcTemplate(shop));
    }

    public static class NoCredit extends RuntimeException {}

    public static class Orders {
        private final JdbcTemplate shop;

        Orders(JdbcTemplate shop) {
            this.shop = shop;
        }

        @Transactional
        public void place(UUID id, int total) {
            shop.update("INSERT INTO orders (id, total) VALUES (?, ?)", id, total);
            enqueue(id, "OrderPlaced", total, 1);
            reserveCredit(total);
        }

        @Transactional
        public void change(UUID id, int total) {
            Long version = shop.queryForObject(
                "UPDATE orders SET total = ?, version = version + 1 WHERE id = ? RETURNING version",
                Long.class, total, id);
            enqueue(id, "OrderChanged", total, version);
            reserveCredit(total);
        }

        // Adds an event to the transaction that has changed the order.
        private void enqueue(UUID id, String eventType, int total, long version) {
            shop.queryForObject(
                "SELECT outbox.enqueue('order', ?, ?, jsonb_build_object('total', ?), version => ?)",
                UUID.class, id, eventType, total, version);
        }

        private void reserveCredit(int total) {
            if (total > 1000)
                throw new NoCredit(); // this takes the order back, and its event
        }
    }

    static class Shipping {
        private final JdbcTemplate shop;
        private final JdbcTemplate shipping;
        private final TransactionTemplate transaction;

        Shipping(DataSource shop, DataSource shipping) {
            this.shop = new JdbcTemplate(shop);
            this.shipping = new JdbcTemplate(shipping);
            this.transaction = new TransactionTemplate(new DataSourceTransactionManager(shipping));
        }

        void handle(Map<String, Object> event) {
            transaction.executeWithoutResult(status -> {
                Boolean isNew = shipping.queryForObject(
                    "SELECT inbox.begin_event('shipping', ?, 'shop')", Boolean.class, event.get("event_id"));
                if (!isNew)
                    return; // it came before
                shipping.queryForObject(
                    "SELECT inbox.apply('shipment', ARRAY['order_id'], 'version', convert_from(?, 'UTF8')::jsonb"
                        + " || jsonb_build_object('order_id', ?, 'version', ?))",
                    Boolean.class, event.get("payload"), event.get("aggregate_id"), event.get("version"));
            });
        }

        void run() throws InterruptedException {
            while (true) {
                List<Map<String, Object>> events = shop.queryForList("SELECT * FROM outbox.fetch('shipping')");
                events.forEach(this::handle);
                if (events.isEmpty())
                    Thread.sleep(100);
                else
                    shop.queryForObject("SELECT outbox.ack(?)", Integer.class, events.get(0).get("token"));
            }
        }
    }

    public static void main(String[] arguments) throws InterruptedException {
        try (var context = new AnnotationConfigApplicationContext(Shop.class)) {
            if (arguments[0].equals("ship")) {
                DataSource shipping = new DriverManagerDataSource(System.getenv("SHIPPING"));
                new Shipping(context.getBean(DataSource.class), shipping).run();
            }
            UUID id = UUID.fromString(arguments[1]);
            int total = Integer.parseInt(arguments[2]);
            Orders orders = context.getBean(Orders.class);
            if (arguments[0].equals("place"))
                orders.place(id, total);
            else
                orders.change(id, total);
        }
    }
}
