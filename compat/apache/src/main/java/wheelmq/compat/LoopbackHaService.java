package wheelmq.compat;

import java.io.IOException;
import java.lang.reflect.Field;
import java.net.InetAddress;
import java.net.InetSocketAddress;
import org.apache.rocketmq.store.DefaultMessageStore;
import org.apache.rocketmq.store.ha.DefaultHAService;

/**
 * Apache's replication service, listening on loopback only.
 *
 * <p>{@code bindAddress} rules the two remoting ports but not the replication port, which Apache opens on every
 * interface. This is its own service with that one address replaced before it is bound.
 */
public final class LoopbackHaService extends DefaultHAService {

    @Override
    public void init(DefaultMessageStore store) throws IOException {
        super.init(store);
        int port = store.getMessageStoreConfig().getHaListenPort();
        try {
            Field address = AcceptSocketService.class.getDeclaredField("socketAddressListen");
            address.setAccessible(true);
            address.set(acceptSocketService, new InetSocketAddress(InetAddress.getLoopbackAddress(), port));
        } catch (ReflectiveOperationException changedUpstream) {
            throw new IOException(changedUpstream);
        }
    }
}
